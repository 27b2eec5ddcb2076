"""Before a run: every compiled part of the model is compared with its plain form on this machine.

A part that does not compile, does not run or gives other numbers runs plain; the run goes on without it.
"""

import time

import torch

from model import layer_weights
from quant import fake_quantise

# Relative difference of outputs and gradients. Both forms round to bfloat16, and a rounding can change
# the choice of an expert; a wrong form differs by about 1.
LIMIT = 0.15


def _outputs(part, arguments, leaves):
    """Outputs of a part and the gradients of a fixed sum of them, as f32 tensors."""
    for leaf in leaves:
        leaf.grad = None
    out = part(*arguments)
    first = out[0] if isinstance(out, tuple) else out
    generator = torch.Generator(first.device).manual_seed(1)
    scale = torch.randn(first.shape, generator=generator, device=first.device) if first.dim() else 1.0
    (first.float() * scale).sum().backward()
    got = [first.detach().float()] + [leaf.grad.float().clone() for leaf in leaves if leaf.grad is not None]
    for leaf in leaves:
        leaf.grad = None
    return got


def _difference(a, b):
    """Largest relative difference of two lists of tensors; infinite for NaN."""
    worst = 0.0
    for x, y in zip(a, b):
        d = ((x - y).norm() / (y.norm() + 1e-12)).item()
        worst = max(worst, d) if d == d else float("inf")
    return worst


def settle(model, tokens, lay, weight, note):
    """Checks the parts of `model` at the shape of one batch and replaces those that fail by their plain form."""
    c, work, device = model.c, model.params.work, tokens.device
    layers = [{k: v.detach().clone().requires_grad_() for k, v in w.items()} for w in layer_weights(c, work)]
    generator = torch.Generator(device).manual_seed(2)
    x = torch.randn(*tokens.shape, c.hidden_size, generator=generator, device=device)
    head = work["head"][0].detach().clone().requires_grad_()
    norm = work["norm.final"][0].detach().clone().requires_grad_()

    def pick(w, moe):
        return {k: v for k, v in w.items() if k.startswith(("moe", "shared", "norm.post")) == moe}

    cases = {
        "delta": lambda x: (
            (pick(layers[c.delta_layers[0]], False), x, lay),
            [*pick(layers[c.delta_layers[0]], False).values(), x],
        ),
        "attention": lambda x: ((pick(layers[-1], False), x, lay), [*pick(layers[-1], False).values(), x]),
        "moe": lambda x: ((pick(layers[0], True), x), [*pick(layers[0], True).values(), x]),
        "norm": lambda x: ((x, norm), [x, norm]),
        "loss": lambda x: ((x.flatten(0, 1), head, tokens.flatten(), weight.flatten()), [x, head]),
    }
    for name, case in cases.items():
        compiled, plain = getattr(model, name), model.plain[name]
        if compiled is plain:
            continue
        start = time.time()
        arguments, leaves = case(x.clone().requires_grad_())
        try:
            got = _outputs(compiled, arguments, leaves)
            difference = _difference(got, _outputs(plain, arguments, leaves))
            good, text = difference < LIMIT, f"difference {difference:.1e}"
        except Exception as problem:
            good, text = False, repr(problem)[:600]
        if not good:
            setattr(model, name, plain)
        note(f"{name} at {tuple(tokens.shape)}: {'compiled' if good else 'PLAIN'}, {text}, {time.time() - start:.1f} s")


def settle_quantise(params, note):
    """The compiled rounding to few bits if it gives the plain form's values, else the plain form."""
    compiled = torch.compile(fake_quantise, dynamic=False)
    try:
        # A division rounded otherwise may move a few values by a step; it moves no others.
        changed = 0.0
        for b, bits in (("q4", 4), ("q8", 8)):
            want = fake_quantise(params.flat[b], bits)
            other = (compiled(params.flat[b], bits) - want).abs() > 1e-5 * want.abs() + 1e-7
            changed = max(changed, other.float().mean().item())
        good = changed < 1e-3
        text = f"{'compiled' if good else 'PLAIN'}, {changed:.1e} of the values differ"
    except Exception as problem:
        good, text = False, f"PLAIN, {problem!r}"[:300]
    note(f"rounding: {text}")
    return compiled if good else fake_quantise
