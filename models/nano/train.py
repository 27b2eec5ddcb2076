#!/usr/bin/env python3
"""Trains lily-nano, from nothing or from a written model.

  python train.py --minutes 15 --out OUT            one GPU
  python train.py --from MODEL --minutes 9.4 --rate 2e-3 --seed 2 --first-long 0 --out OUT
  python train.py --tiny --steps 200 --out OUT      a check on a CPU

The rate of learning and the switch to 4-bit weights follow the share of the time (or of `--steps`)
that has passed, so that any limit gives a finished model. Every two minutes, and at the end, OUT holds the whole
model; a run that breaks off leaves the last one, and `resume.pt` for a run that goes on from there.
"""

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import torch

import delta
from chat import ANSWER, CONTEXT
from config import NANO, TINY
from export import read_model, write_model
from feed import Feed, Plan, load_tokenizer, make_block
from model import Model, layout
from optim import Optimiser
from params import Params, check_groups
from quant import fake_quantise
from settle import settle, settle_quantise

# Of a token that is only read, against 1 for one to be written: at first, and from a share of the run on. Most of what is
# read is drawn at random; late in the run it would add noise and nothing else.
CONTEXT_WEIGHT, LATE_WEIGHT = 0.05, 0.01
LATE_FROM, LATE_AT = 0.2, 0.5
MTP_WEIGHT, BALANCE_WEIGHT = 0.3, 0.01
WARM_STEPS = 100
DECAY_FROM = 0.25  # share of the run at which the rate starts to fall
QUANTISE_FROM = 0.75  # share of the run from which the forward pass sees 4-bit weights


def rate(peak, step, progress):
    """Warm-up by steps, constant, then linear down to a fiftieth."""
    down = 1.0 if progress < DECAY_FROM else 1 - (progress - DECAY_FROM) / (1 - DECAY_FROM)
    return peak * min(1.0, (step + 1) / WARM_STEPS) * max(down, 0.02)


def context_weight(progress):
    """Weight of tokens that are only read, at a share of the run."""
    late = min(1.0, max(0.0, (progress - LATE_FROM) / (LATE_AT - LATE_FROM)))
    return CONTEXT_WEIGHT + (LATE_WEIGHT - CONTEXT_WEIGHT) * late


def to_device(block, config, plan, device, varlen, context=CONTEXT_WEIGHT):
    """A block as (tokens, layout, weight, mtp_weight) on the device; `context` weighs tokens that are only read."""
    tokens, position, kinds = (torch.from_numpy(a.astype("int32")).to(device, non_blocking=True).long() for a in block)
    value = (kinds == ANSWER).float() + context * (kinds == CONTEXT).float()
    weight = value.roll(-1, 1) * (position.roll(-1, 1) > 0)
    mtp_weight = value.roll(-2, 1) * (position.roll(-2, 1) > 1)
    weight[:, -1], mtp_weight[:, -2:] = 0, 0
    return tokens, layout(config, position, varlen, plan.documents), weight, mtp_weight


def choose_attention(config, device):
    """Whether the attention over documents works here and agrees with the plain one."""
    if device.type != "cuda":
        return False, "plain attention"
    from model import attend

    try:
        q = torch.randn(2, 256, config.num_attention_heads, config.head_dim, device=device, dtype=torch.bfloat16)
        k, v = (
            torch.randn(2, 256, config.num_key_value_heads, config.head_dim, device=device, dtype=torch.bfloat16)
            for _ in range(2)
        )
        position = torch.arange(256, device=device).repeat(2, 1)
        position[0, 100:] -= 100
        outs = []
        for varlen in (False, True):
            for x in (q, k, v):
                x.requires_grad_().grad = None
            o = attend(q, k, v, layout(config, position, varlen, 16))
            o.float().square().sum().backward()
            outs.append((o.detach().float(), k.grad.float()))
        error = max(((a - b).norm() / a.norm()).item() for a, b in zip(*outs))
        return error < 0.02, f"attention over documents, error {error:.1e}"
    except Exception as problem:
        return False, f"attention over documents failed: {problem!r}"[:300]


class Log:
    """Prints lines and keeps records; the file is rewritten as it grows."""

    def __init__(self, path):
        self.path, self.records, self.notes = path, [], []

    def note(self, text):
        print(text, flush=True)
        self.notes.append(text)

    def record(self, **values):
        print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items()), flush=True)
        self.records.append(values)

    def save(self):
        partial = self.path.with_suffix(".part")
        partial.write_text(json.dumps({"notes": self.notes, "steps": self.records}))
        partial.replace(self.path)


def run_step(model, block, config, plan, device, varlen, micro, context=CONTEXT_WEIGHT):
    """Forward and backward of one block in `micro` parts.

    Returns the loss, the drafting layer's loss, the mean loss of the tokens to be written, and the experts' shares.
    """
    parts = [to_device([a[i::micro] for a in block], config, plan, device, varlen, context) for i in range(micro)]
    total, mtp_total = sum(p[2].sum() for p in parts), sum(p[3].sum() for p in parts)
    answers = sum((p[2] > 0.5).sum() for p in parts)
    sums, shares = 0.0, 0.0
    for tokens, lay, weight, mtp_weight in parts:
        out = model(tokens, lay, weight, mtp_weight)
        main_loss, mtp_loss = out["main"] / total, out["mtp"] / mtp_total
        (main_loss + MTP_WEIGHT * mtp_loss + BALANCE_WEIGHT / micro * out["balance"]).backward()
        answer = (out["losses"] * (weight > 0.5).flatten()).sum() / answers
        sums = sums + torch.stack([main_loss.detach(), mtp_loss.detach(), answer])
        shares = shares + out["shares"].detach() / micro
    return *sums, shares


def prepare(model, config, plan, device, varlen, compiled, log):
    """Settles which parts run compiled and in how many parts a block must be computed. Returns that number."""
    tokenizer = load_tokenizer()
    blocks = [
        make_block(tokenizer, plan, k) for k in dict.fromkeys((0, -(-plan.first_long // plan.every) * plan.every))
    ]
    micro = 1
    while True:
        try:
            for block in blocks:
                if compiled:
                    tokens, lay, weight, _ = to_device([a[::micro] for a in block], config, plan, device, varlen)
                    settle(model, tokens, lay, weight, log.note)
                for _ in range(2):
                    start = time.time()
                    out = run_step(model, block, config, plan, device, varlen, micro)
                    text = f"block {block[0].shape}, {micro} parts: loss {out[0].item():.3f}"
                log.note(f"{text}, {(time.time() - start) * 1000:.0f} ms")
                for w in model.params.work.values():
                    w.grad = None
            return micro
        except torch.OutOfMemoryError:
            micro *= 2
            if micro > min(len(b[0]) for b in blocks):
                raise
            for w in model.params.work.values():
                w.grad = None
            torch.cuda.empty_cache()


def save_state(path, params, optimiser, step, seen, progress):
    """All that a later run needs to go on."""
    partial = path.with_suffix(".part")
    torch.save(
        {"flat": params.flat, "optimiser": optimiser.state(), "step": step, "seen": seen, "progress": progress}, partial
    )
    partial.replace(path)


def restore(state, params, optimiser):
    """Takes up the state of a run that broke off."""
    for name, flat in state["flat"].items():
        params.flat[name].copy_(flat)
    params.refresh(None)
    optimiser.restore(state["optimiser"])


def profile(profiler, log):
    """Starts a profiler, or stops it and notes where the time of the GPU went."""
    torch.cuda.synchronize()
    try:
        if profiler is None:
            profiler = torch.profiler.profile()
            profiler.__enter__()
        else:
            profiler.__exit__(None, None, None)
            log.note(
                profiler.key_averages().table(sort_by="self_device_time_total", row_limit=45, max_name_column_width=70)
            )
    except Exception as problem:
        log.note(f"no profile: {problem!r}")
    return profiler


def routing(shares):
    """(smallest, largest) share of the tokens that one expert gets, over all layers."""
    return shares.min().item(), shares.max().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument(
        "--minutes", type=float, default=15.0, help="wall clock of the training, without the final evaluation"
    )
    p.add_argument("--steps", type=int, default=0, help="fixed number of steps instead of minutes")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--rate", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, default=max(1, min(10, (os.cpu_count() or 2) - 2)))
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--tokens", type=int, default=0, help="tokens of a step")
    p.add_argument("--first-long", type=int, default=300)
    p.add_argument("--from", dest="base", type=Path, help="written model to begin with")
    p.add_argument("--resume", type=Path, help="state of a run that broke off; --minutes or --steps are what is left")
    p.add_argument("--profile", type=int, default=0, help="step at which two steps are profiled")
    a = p.parse_args()
    begin = time.time()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = TINY if a.tiny else NANO
    plan = Plan(seed=a.seed, first_long=a.first_long)
    if a.tiny:
        plan = replace(plan, tokens=4096, short=1024, long=2048, documents=256)
    if a.tokens:
        plan = replace(plan, tokens=a.tokens, documents=max(128, a.tokens // 40))
    if plan.tokens % plan.long:
        p.error(f"--tokens {plan.tokens} is no multiple of the long rows' {plan.long}")
    a.out.mkdir(parents=True, exist_ok=True)
    log = Log(a.out / "log.json")
    state = torch.load(a.resume, map_location=device) if a.resume and a.resume.exists() else None
    feed = Feed(plan, a.workers, state["step"] if state else 0)
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    check_groups(config)
    params = read_model(a.base, config, device) if a.base else Params(config, device, a.seed)
    params.refresh(None)
    varlen, text = choose_attention(config, device)
    log.note(
        f"{params.count()} parameters, device {device}, {a.workers} workers; {text}; inverse: {delta.choose_inverse(device)}"
    )
    compiled = device.type == "cuda" and not a.no_compile
    wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
    model, optimiser = Model(params, wrap), Optimiser(params)
    quantise = settle_quantise(params, log.note) if compiled else fake_quantise
    micro = prepare(model, config, plan, device, varlen, compiled, log)
    profiler = None
    step, seen, done, mark, last_save, waited = 0, 0, 0.0, time.time(), time.time(), 0.0
    if state:
        restore(state, params, optimiser)
        step, seen, done = (state[k] for k in ("step", "seen", "progress"))
        log.note(f"goes on from step {step}, {done:.0%} of the run")
    loss_sums, shares = [], None
    start, first = time.time(), step
    while True:
        part = (step - first) / a.steps if a.steps else (time.time() - begin) / (a.minutes * 60)
        progress = done + (1 - done) * part
        if progress >= 1:
            break
        if a.profile and step in (a.profile, a.profile + 2):
            profiler = profile(profiler, log)
        t = time.time()
        block = next(feed)
        waited += time.time() - t
        main_loss, mtp_loss, answer_loss, step_shares = run_step(
            model, block, config, plan, device, varlen, micro, context_weight(progress)
        )
        norm = optimiser.step(rate(a.rate, step, progress))
        params.refresh(quantise if progress >= QUANTISE_FROM else None)
        loss_sums.append(torch.stack([main_loss, mtp_loss, answer_loss, norm]))
        shares = step_shares if shares is None else shares.lerp(step_shares, 0.05)
        step, seen = step + 1, seen + plan.tokens
        if step in (1, 2, 5, 10, 20) or step % 50 == 0:
            main_loss, mtp_loss, answer_loss, norm = torch.stack(loss_sums).mean(0).tolist()
            now = time.time()
            low, high = routing(shares * config.num_experts_per_tok)
            log.record(
                step=step,
                seconds=round(now - begin, 1),
                tokens=seen,
                rate=rate(a.rate, step, progress),
                loss=main_loss,
                answer=answer_loss,
                mtp=mtp_loss,
                norm=norm,
                low=low,
                high=high,
                wait=round(waited, 2),
                speed=len(loss_sums) * plan.tokens / (now - mark),
                memory=round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else 0,
            )
            loss_sums, mark, waited = [], now, 0.0
            if now - last_save > 120:
                last_save = now
                write_model(params, a.out)
                save_state(a.out / "resume.pt", params, optimiser, step, seen, progress)
                log.save()
                mark = time.time()
    log.note(f"{step} steps, {seen} tokens in {time.time() - start:.0f} s")
    feed.close()
    params.refresh(quantise)
    write_model(params, a.out)
    torch.save({n: w.to(torch.bfloat16).cpu() for n, w in params.flat.items()}, a.out / "master.pt")
    log.save()


if __name__ == "__main__":
    main()
