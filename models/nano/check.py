#!/usr/bin/env python3
"""Checks of lily-nano's own code, on a CPU, without a trained model: `python check.py`.

the chunked delta rule is the recurrence, forward and backward
reading token by token is reading the whole
documents of one row do not see each other
conversations are rendered as the chat template does it
what is held out never occurs in training
a written model reads back as what was rounded
a run that goes on from a saved state is the same run
"""

import json
import random
import tempfile
from pathlib import Path

import jinja2
import torch

import chat
import delta
import model
from config import NANO, TINY
from data import arithmetic, mix
from data.item import draw_until, held_out
from decode import Decoder, pad
from evaluate import drafts
from export import read_model, write_model
from feed import Feed, Plan, load_tokenizer, make_block
from judge import judge
from optim import Optimiser
from params import Params, check_groups
from quant import _bf16, fake_quantise
from tokenizer import TEMPLATE
from train import restore, save_state

CPU = torch.device("cpu")


def chunked_is_recurrence():
    torch.manual_seed(1)
    b, t, kh, vh, d = 2, 3 * delta.CHUNK, 2, 4, 16
    unit = lambda x: x / x.norm(dim=-1, keepdim=True)
    q, k = (unit(torch.randn(b, t, kh, d, dtype=torch.float64)) for _ in range(2))
    v, decay = torch.randn(b, t, vh, d, dtype=torch.float64), -torch.rand(b, t, vh, dtype=torch.float64)
    decay[1, 100] = model.RESET
    inputs = [x.requires_grad_() for x in (q, k, v, decay, torch.rand(b, t, vh, dtype=torch.float64))]
    out, state = delta.delta_chunked(*inputs)
    s, steps = torch.zeros_like(state), []
    for i in range(t):
        o, s = delta.delta_step(*(x[:, i] for x in inputs), s)
        steps.append(o)
    want = torch.stack(steps, 1)
    assert (out - want).abs().max() < 1e-12 and (state - s).abs().max() < 1e-12
    r = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad((out * r).sum(), inputs), torch.autograd.grad((want * r).sum(), inputs)):
        assert (a - b).abs().max() < 1e-11


def small_params():
    params = Params(TINY, CPU, seed=3)
    params.refresh(None)
    return params


def stepwise_is_whole():
    params = small_params()
    ids = [random.Random(1).randrange(8000) for _ in range(130)]
    decoder = Decoder(params)
    rows = [decoder.prefill(*pad([ids[:100], ids[:3]], 0), 40)]
    for t in ids[100:]:
        rows.append(decoder.step(torch.tensor([t, t])))
    want, _ = drafts(params, pad([ids], 0)[0])
    got = torch.stack([r[0] for r in rows])
    assert (got - want[0, 99:130]).abs().max() < 1e-4


def documents_are_apart():
    params, m = small_params(), None
    m = model.Model(params)
    ids = torch.randint(0, 8000, (1, 256), generator=torch.Generator().manual_seed(2))
    other = ids.clone()
    other[0, :90] = 5
    position = torch.arange(256)[None].clone()
    position[0, 90:] -= 90
    weight = torch.ones(1, 256)
    lay = model.layout(TINY, position, False, 0)
    with torch.no_grad():
        a, b = (m(x, lay, weight, weight) for x in (ids, other))
    assert (a["losses"][90:-1] - b["losses"][90:-1]).abs().max() < 1e-5
    assert (a["mtp_losses"][90:-2] - b["mtp_losses"][90:-2]).abs().max() < 1e-5
    assert (a["losses"][:88] - b["losses"][:88]).abs().max() > 1e-3


def rendered_as_template():
    folder = Path(__file__).resolve().parent / "tokenizer"
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE.read_text()
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)

    def refuse(text):
        raise ValueError(text)

    env.globals["raise_exception"] = refuse
    template = env.from_string((folder / "chat_template.jinja").read_text())
    rng = random.Random(4)
    for _ in range(400):
        c = mix.draw_short(rng)
        messages = [{"role": "system", "content": c.system}] if c.system else []
        for turn in c.turns:
            if turn[0] == "assistant":
                calls = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in turn[3]]
                messages.append(
                    {
                        "role": "assistant",
                        "content": turn[2],
                        "reasoning_content": turn[1] if c.think else "",
                        "tool_calls": calls,
                    }
                )
            else:
                messages.append({"role": turn[0], "content": turn[1]})
        prompt, answer = chat.prompt_and_answer(c)
        got = template.render(
            messages=messages[:-1], tools=c.tools, add_generation_prompt=True, enable_thinking=c.think
        )
        assert got == prompt, (got, prompt)
        whole = template.render(messages=messages, tools=c.tools)
        text = prompt + answer + "\n"
        if c.think:
            assert whole == text, (whole, text)


def held_out_is_apart():
    rng = random.Random(5)
    seen = [set(), set()]
    for i in range(4000):
        d = draw_until(lambda d: (arithmetic.operands(d), d), rng, bool(i % 2))[0]
        op, a, b, _ = d
        if max(a, b) > 12:
            seen[i % 2].add((op, *sorted((a, b))) if op in ("add", "mul") else (op, a, b))
    assert seen[0] and seen[1] and not seen[0] & seen[1]
    assert all(held_out(*k) for k in seen[1])


def judge_accepts_what_is_expected():
    """The expected text is right by every measure; a changed one is not."""
    rng = random.Random(8)
    for ability in mix.WEIGHTS:
        for _ in range(60):
            c = mix.draw_short(rng, True, ability, single=True)
            expected = chat.prompt_and_answer(c)[1].removesuffix("<|im_end|>")
            result = judge(c, expected, expected)
            assert all(result.values()), (ability, expected, c.gold, result)
            assert not judge(c, expected.replace("</think>", ""), expected)["right"] or not c.think
            assert not judge(c, "", expected)["right"]


def written_reads_back():
    params = Params(TINY, CPU, seed=6)
    with tempfile.TemporaryDirectory() as folder:
        write_model(params, Path(folder))
        back = read_model(Path(folder), TINY, CPU)
    for buffer, bits in (("q4", 4), ("q8", 8)):
        assert torch.equal(back.flat[buffer], fake_quantise(params.flat[buffer], bits))


def rounding_is_bfloat16():
    x = torch.randn(4096, generator=torch.Generator().manual_seed(7)) * torch.logspace(-8, 8, 4096)
    assert torch.equal(_bf16(x), x.bfloat16().float())


def resumed_is_the_same():
    """A run that goes on from a saved state takes the same step, with the same block, as one that never stopped."""
    one, two = small_params(), Params(TINY, CPU, seed=4)
    optimisers = [Optimiser(one), Optimiser(two)]

    def step(params, optimiser, seed):
        generator = torch.Generator().manual_seed(seed)
        for w in params.work.values():
            w.grad = torch.randn(w.shape, generator=generator)
        optimiser.step(1e-2)
        params.refresh(None)

    step(one, optimisers[0], 1)
    with tempfile.TemporaryDirectory() as folder:
        save_state(Path(folder) / "resume.pt", one, optimisers[0], 7, 8, 0.5)
        state = torch.load(Path(folder) / "resume.pt")
    restore(state, two, optimisers[1])
    for params, optimiser in zip((one, two), optimisers):
        step(params, optimiser, 2)
    assert all(torch.equal(one.flat[b], two.flat[b]) for b in one.flat) and state["step"] == 7
    plan = Plan(tokens=2048, short=1024, long=2048, first_long=0, every=2, documents=256)
    feed = Feed(plan, 1, first=1)
    try:
        assert all((x == y).all() for x, y in zip(next(feed), make_block(load_tokenizer(), plan, 1)))
    finally:
        feed.close()


def blocks_repeat():
    tokenizer, plan = load_tokenizer(), Plan(tokens=8192, short=1024, long=4096, first_long=0, every=2, documents=256)
    for k in (0, 1):
        a, b = make_block(tokenizer, plan, k), make_block(tokenizer, plan, k)
        assert all((x == y).all() for x, y in zip(a, b)) and a[0].shape == (8192 // plan.row(k), plan.row(k))
        tokens, position, kinds = a
        assert (position[:, 0] == 0).all() and (kinds != 0).mean() > 0.8


def main():
    check_groups(NANO)
    check_groups(TINY)
    torch.set_num_threads(1)
    for check in (
        chunked_is_recurrence,
        stepwise_is_whole,
        documents_are_apart,
        rendered_as_template,
        held_out_is_apart,
        judge_accepts_what_is_expected,
        written_reads_back,
        rounding_is_bfloat16,
        resumed_is_the_same,
        blocks_repeat,
    ):
        check()
        print("ok", check.__name__.replace("_", " "), flush=True)


if __name__ == "__main__":
    main()
