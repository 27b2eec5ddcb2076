#!/usr/bin/env python3
"""Compares a written model with transformers and mlx-lm, and writes a reference folder for `lily eval`.

  python peers.py --folder MODEL --reference DIR [--chats 30] [--top 8]

The reference is transformers in float32 on the stored weights, over held-out conversations of each ability in turn: `prompts.json` and
`logits_hf32.safetensors`, as in tests/golden; with `--top N` instead `top_hf32.safetensors`, which has the N largest
logits of each position, that of the next token and the logarithm of the sum of the exponentials of all: tests/golden/nano
is written with `--chats 30 --top 8`. mlx-lm is left out if it is not installed. Fails where one of them differs.
"""

import argparse
import json
import random
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from chat import prompt_and_answer
from config import NANO, TINY
from data import mix
from evaluate import drafts
from export import names, read_model
from feed import load_tokenizer


def transformers_model(folder, config, params):
    """The model family's class of transformers with the values that the stored weights stand for."""
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    text = json.loads((folder / "config.json").read_text())["text_config"]
    own = Qwen3_5MoeTextConfig(**{k: v for k, v in text.items() if k not in ("model_type", "dtype")})
    own._attn_implementation = own._experts_implementation = "eager"
    state, experts = {}, {}
    for name, kind, at in names(config):
        if name.startswith("mtp."):
            continue
        w = params.master[kind][at]
        if ".switch_mlp." in name:
            experts[name] = w
            continue
        if kind == "gdn.conv":
            w = w[:, None]
        elif kind in ("norm.in", "norm.post", "norm.final", "attn.q_norm", "attn.k_norm"):
            w = w - 1
        state[name if name.endswith((".weight", "A_log", "dt_bias")) else name + ".weight"] = w.contiguous()
    for i in range(config.num_hidden_layers):
        source, target = f"model.layers.{i}.mlp.switch_mlp.", f"model.layers.{i}.mlp.experts."
        state[target + "gate_up_proj"] = torch.cat([experts[source + "gate_proj"], experts[source + "up_proj"]], 1)
        state[target + "down_proj"] = experts[source + "down_proj"]
    model = Qwen3_5MoeForCausalLM(own).to(torch.float32).eval()
    model.load_state_dict(state, strict=True)
    return model


def mlx_logits(folder, prompts):
    """Logits of mlx-lm on dequantised float32 weights, or None without mlx-lm."""
    try:
        import mlx.core as mx
        from mlx_lm.utils import dequantize_model, load_model
    except ImportError:
        return None
    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    model = dequantize_model(model)
    return [torch.from_numpy(np.array(model(mx.array([ids]))[0])) for ids in prompts]


def difference(name, got, want):
    worst = max((a - b).abs().max().item() for a, b in zip(got, want))
    same = sum((a.argmax(-1) == b.argmax(-1)).sum().item() for a, b in zip(got, want))
    print(f"{name}: largest difference {worst:.2e}, same argmax {same}/{sum(len(a) for a in want)}", flush=True)
    assert worst < 1e-3, f"{name} computes another model"


def few(prompts, logits, n):
    """Tensors of `top_hf32.safetensors`."""
    out = {}
    for ids, rows in zip(prompts, logits):
        tokens = rows.topk(n + 1).indices
        following = torch.tensor(ids[1:] + ids[-1:])  # of the last row nothing is asked
        absent = (tokens != following[:, None]).all(1)
        tokens[absent, n] = following[absent]
        out[f"ids.{len(ids)}"] = tokens.int().contiguous()
        out[f"logits.{len(ids)}"] = rows.gather(1, tokens).contiguous()
        out[f"sum.{len(ids)}"] = rows.double().logsumexp(-1).float()
    return out


@torch.no_grad()
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--folder", type=Path, required=True)
    p.add_argument("--reference", type=Path)
    p.add_argument("--chats", type=int, default=30)
    p.add_argument("--top", type=int)
    p.add_argument("--tiny", action="store_true")
    a = p.parse_args()
    config = TINY if a.tiny else NANO
    tokenizer, rng = load_tokenizer(a.folder), random.Random(2027)
    prompts, lengths = [], set()
    abilities = cycle(mix.WEIGHTS)
    while len(prompts) < a.chats:  # one conversation of each length: the reference names rows by length
        chat = mix.draw_short(rng, held=True, ability=next(abilities), single=True)
        ids = tokenizer.encode("".join(prompt_and_answer(chat))).ids
        if len(ids) not in lengths and len(ids) <= 400:
            lengths.add(len(ids))
            prompts.append(ids)
    params = read_model(a.folder, config, torch.device("cpu"))
    own = []
    for ids in prompts:
        padded = torch.tensor([ids + [0] * (-len(ids) % 64)])
        own.append(drafts(params, padded)[0][0, : len(ids)])
    model = transformers_model(a.folder, config, params)
    want = [model(torch.tensor([ids])).logits[0] for ids in prompts]
    difference("own code", own, want)
    mlx = mlx_logits(a.folder, prompts)
    if mlx is not None:
        difference("mlx-lm", mlx, want)
    if a.reference:
        a.reference.mkdir(parents=True, exist_ok=True)
        if a.top:
            save_file(few(prompts, want, a.top), a.reference / "top_hf32.safetensors")
        else:
            whole = {f"logits.{len(i)}": w.contiguous() for i, w in zip(prompts, want)}
            save_file(whole, a.reference / "logits_hf32.safetensors")
        (a.reference / "prompts.json").write_text(
            json.dumps(
                {
                    "prompts": prompts,
                    "greedy": [[] for _ in prompts],
                    "greedy_logit_gaps": [[] for _ in prompts],
                    "hidden_prompt": 0,
                }
            )
        )


if __name__ == "__main__":
    main()
