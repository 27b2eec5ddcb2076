#!/usr/bin/env python3
"""Measures a written model on held-out items.

  python evaluate.py --folder MODEL [--master MODEL/master.pt] [--items 128] [--out eval.json]

With `--master` the bfloat16 weights before quantisation are measured too.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F

from chat import prompt_and_answer
from config import NANO, TINY
from data import mix
from data.item import Draw, Retry
from decode import Decoder
from export import read_model
from feed import load_tokenizer
from judge import judge
from model import (
    attention_layer,
    delta_layer,
    layer_weights,
    layout,
    linear,
    moe_layer,
    rms,
)

LOOKUPS = {"lookup 2K": (1500, 2048), "lookup 6K": (5000, 6144)}


def lookup(rng, low, high, tokenizer):
    """A held-out question over a context with a prompt of `low` to `high` tokens."""
    while True:
        try:
            chat = mix.lookup_chat(Draw(rng, True), rng.uniform(low, high), 1)
        except Retry:
            continue
        n = len(tokenizer.encode(prompt_and_answer(chat)[0]).ids)
        if low <= n <= high:
            return chat


def items(count, tokenizer, long=True, seed=99):
    """{ability: [Chat]} of held-out conversations."""
    rng = random.Random(seed)
    out = {a: [mix.draw_short(rng, True, a, single=True) for _ in range(count)] for a in mix.WEIGHTS}
    if long:
        for name, (low, high) in LOOKUPS.items():
            out[name] = [lookup(rng, low, high, tokenizer) for _ in range(count)]
    return out


def generate(params, tokenizer, chats, most=224, tokens=400_000):
    """Greedy outputs of conversations, in batches of prompts of similar length. Returns texts and ids."""
    decoder = Decoder(params)
    stops = [tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]
    prompts = [tokenizer.encode(prompt_and_answer(c)[0]).ids for c in chats]
    order = sorted(range(len(chats)), key=lambda i: len(prompts[i]))
    out, at = [None] * len(chats), 0
    while at < len(order):
        n = 1
        while at + n < len(order) and (n + 1) * (len(prompts[order[at + n]]) + most) <= tokens and n < 512:
            n += 1
        part = order[at : at + n]
        for i, ids in zip(part, decoder.generate([prompts[i] for i in part], stops[1], stops, most)):
            out[i] = ids
        at += n
    return [tokenizer.decode(o, skip_special_tokens=False) for o in out], prompts, out


@torch.no_grad()
def drafts(params, tokens):
    """(next-token argmax, draft of the token after it) at each position of one document `[1, t]`."""
    c, work, weights = params.config, params.work, layer_weights(params.config, params.work)
    lay = layout(c, torch.arange(tokens.shape[1], device=tokens.device)[None], False, 0)
    e = F.embedding(tokens, work["embed"][0]).float()
    x = e
    for i in range(c.num_hidden_layers):
        x = (attention_layer if c.is_attention(i) else delta_layer)(c, weights[i], x, lay)
        x = moe_layer(c, weights[i], x)[0]
    h = rms(x, work["norm.final"][0], c.rms_norm_eps)
    pre = torch.cat(
        [rms(e.roll(-1, 1), work["norm.mtp"][0], c.rms_norm_eps), rms(h, work["norm.mtp"][1], c.rms_norm_eps)], -1
    )
    x = attention_layer(c, weights[-1], linear(pre, work["mtp.fc"][0]).float(), lay)
    x = moe_layer(c, weights[-1], x)[0]
    logits = linear(h, work["head"][0]).float()
    return logits, linear(rms(x, work["norm.mtp"][2], c.rms_norm_eps), work["head"][0]).argmax(-1)


def acceptance(params, prompts, outputs, pad, stop, most=200):
    """Share of first drafts that equal what greedy decoding wrote, over answers of `most` conversations."""
    device, right, total = params.flat["small"].device, 0, 0
    for p, o in list(zip(prompts, outputs))[:most]:
        ids = p + o + [stop]
        length = -(-len(ids) // 64) * 64
        if len(p) > 2048 or len(o) < 2:
            continue
        _, draft = drafts(params, torch.tensor([ids + [pad] * (length - len(ids))], device=device))
        # The draft at position n is for n + 2; the first drafted token of an answer is its second.
        want = ids[len(p) + 1 :]
        got = draft[0, len(p) - 1 : len(p) - 1 + len(want)].tolist()
        right, total = right + sum(a == b for a, b in zip(got, want)), total + len(want)
    return right / max(total, 1)


@torch.no_grad()
def answer_loss(params, tokenizer, chats):
    """Mean loss of the tokens to be written, over the last turns of conversations."""
    device, loss, total = params.flat["small"].device, 0.0, 0
    for chat in chats:
        p, a = (tokenizer.encode(t).ids for t in prompt_and_answer(chat))
        ids = p + a
        length = -(-len(ids) // 64) * 64
        logits, _ = drafts(params, torch.tensor([ids + [0] * (length - len(ids))], device=device))
        rows = logits[0, len(p) - 1 : len(ids) - 1]
        loss += F.cross_entropy(rows, torch.tensor(a, device=device), reduction="sum").item()
        total += len(a)
    return loss / total


def measure(params, tokenizer, groups):
    """Figures of one set of weights: {"abilities": {...}, "mtp": ..., "loss": ...}, and wrong examples."""
    names = [(a, c) for a, chats in groups.items() for c in chats]
    texts, prompts, outputs = generate(params, tokenizer, [c for _, c in names])
    marks, wrong = defaultdict(lambda: defaultdict(list)), defaultdict(list)
    for (ability, chat), text in zip(names, texts):
        expected = prompt_and_answer(chat)[1].removesuffix("<|im_end|>")
        result = judge(chat, text, expected)
        for k, v in result.items():
            marks[ability][k].append(v)
        marks[ability]["right, thinking" if chat.think else "right, not thinking"].append(result["right"])
        if chat.kind:
            marks[ability][f"right, {chat.kind}"].append(result["right"])
        if not result["right"] and len(wrong[ability]) < 6:
            wrong[ability].append({"question": chat.turns[-2][1][-300:], "wanted": expected[-300:], "got": text[-300:]})
    short = [i for i, (a, _) in enumerate(names) if not a.startswith("lookup ")]
    pick = short[:: max(1, len(short) // 200)]
    stop, end = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    return {
        "abilities": {a: {k: round(sum(v) / len(v), 4) for k, v in m.items()} for a, m in marks.items()},
        "mtp": acceptance(params, [prompts[i] for i in pick], [outputs[i] for i in pick], end, stop),
        "loss": answer_loss(params, tokenizer, [names[i][1] for i in pick]),
    }, wrong


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--folder", type=Path, required=True)
    p.add_argument("--master", type=Path)
    p.add_argument("--items", type=int, default=128)
    p.add_argument("--no-long", action="store_true")
    p.add_argument("--only", help="names of abilities, with commas")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--out", type=Path)
    a = p.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    config = TINY if a.tiny else NANO
    tokenizer = load_tokenizer(a.folder)
    groups = items(a.items, tokenizer, not a.no_long)
    if a.only:
        groups = {name: groups[name] for name in a.only.split(",")}
    result = {"items": a.items}

    def run(name, params):
        start = time.time()
        result[name], wrong = measure(params, tokenizer, groups)
        result[name]["seconds"] = round(time.time() - start, 1)
        if name == "4-bit":
            result["wrong"] = wrong
        print(
            name,
            "loss",
            round(result[name]["loss"], 4),
            "mtp",
            round(result[name]["mtp"], 4),
            f"{time.time() - start:.0f} s",
            flush=True,
        )
        for ability, m in result[name]["abilities"].items():
            print(f"  {ability:12}", " ".join(f"{k} {v:.3f}" for k, v in m.items()), flush=True)
        if a.out:
            a.out.write_text(json.dumps(result, indent=1, ensure_ascii=False))

    params = read_model(a.folder, config, device)
    run("4-bit", params)
    if a.master:
        for name, flat in torch.load(a.master).items():
            params.flat[name].copy_(flat.float())
        params.refresh(None)
        run("bfloat16", params)


if __name__ == "__main__":
    main()
