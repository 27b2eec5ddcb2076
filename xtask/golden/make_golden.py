#!/usr/bin/env python3
"""Writes the golden models of tests/golden: checkpoint, prompts, logits, greedy ids.

  python make_golden.py odd                  writes tests/golden/odd
  python make_golden.py odd --out FOLDER     writes it somewhere else
  python make_golden.py odd --search 24      looks for prompt seeds with wide margins
  python make_golden.py odd --check          compares a new run with the stored files

Each model has random weights and runs through several implementations:

  spec      plain numpy (spec.py); float64 is the arbiter, float32 shows what rounding costs
  emu       the same code, rounding to bfloat16 wherever MLX on Metal stores bfloat16
  hf        transformers, float32
  mlx       mlx-lm, float32 parameters (only for the layout that it writes)

Nothing is written unless spec and hf agree within 2e-4 on every logit and in every choice.

  presets.py     the models and their weights        spec.py         the forward pass
  checkpoint.py  both layouts as dense arrays        libraries.py    transformers and mlx-lm
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from checkpoint import load_dense, write_hf
from libraries import convert_mlx, hf_model, hf_model_from, run_hf, run_mlx, run_mlx_bf16
from presets import PRESETS, WEIGHT_SEED, make_prompt, narrow_matrix, preset
from spec import F32, F64, Spec, round_bf16

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
NEW_TOKENS = 32
HIDDEN_PROMPT = 1          # hidden states and the trace belong to the 7-token prompt
LIMIT = 2e-4               # largest difference of a logit between transformers and numpy


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("preset", choices=PRESETS)
    ap.add_argument("--out", type=Path, help="default: tests/golden/PRESET")
    ap.add_argument("--search", type=int, default=0, metavar="N", help="try N seeds per prompt length, write nothing")
    ap.add_argument("--check", action="store_true", help="compare with the stored files, write nothing")
    args = ap.parse_args()
    p = preset(args.preset)
    out = args.out or GOLDEN / args.preset

    with tempfile.TemporaryDirectory(prefix="golden_") as work:
        work = Path(work)
        checkpoint = make_checkpoint(p, work)
        cfg, dense = load_dense(checkpoint)
        if args.search:
            return search(p, cfg, dense, args.search)
        result = evaluate(args.preset, p, checkpoint, cfg, dense)
        if args.check:
            store(p, checkpoint, result, work / "new")
            return check(work / "new", out)
        store(p, checkpoint, result, out)
    print(json.dumps(result["report"], indent=1))
    print("bytes:", sum(f.stat().st_size for f in out.iterdir()))
    return 0


def make_checkpoint(p, work):
    write_hf(work / "hf", p)
    if p["layout"] == "hf":
        return work / "hf"
    convert_mlx(work / "hf", work / "mlx", p["bits"], narrow_matrix if p["mixed"] else None)
    return work / "mlx"


def search(p, cfg, dense, seeds):
    spec, emu = Spec(cfg, dense, F64), Spec(cfg, dense, F32, emu=True)
    for length, _ in p["prompts"]:
        found = []
        for s in range(seeds):
            ids = make_prompt(p["vocab_size"], length, s)
            want, gaps, rgap = spec.greedy(ids, NEW_TOKENS)
            got = emu.greedy(ids, NEW_TOKENS)[0]
            found.append((prefix(got, want), len(set(want)), min(gaps), rgap, s))
        found.sort(reverse=True)
        print(f"length {length}: (bf16 prefix, distinct tokens, min logit gap, min router gap, seed)")
        for f in found[:6]:
            print("   %d %d %.4f %.5f %d" % f, flush=True)
    return 0


def evaluate(name, p, checkpoint, cfg, dense):
    prompts = [make_prompt(p["vocab_size"], n, s) for n, s in p["prompts"]]
    r = dict(prompts=prompts, trace={}, hidden=[], state=None)
    spec = Spec(cfg, dense, F64)
    ref, sets, greedy = [], [], []
    for n, ids in enumerate(prompts):
        state = spec.fresh_state()
        spec.trace = r["trace"] if n == HIDDEN_PROMPT else None
        ref.append(spec(ids, state, r["hidden"] if n == HIDDEN_PROMPT else None))
        sets += spec.expert_sets
        if n == HIDDEN_PROMPT:
            r["state"], spec.trace = state, None
        greedy.append(spec.greedy(ids, NEW_TOKENS))
    r["greedy"], r["gaps"], router_gaps = (list(x) for x in zip(*greedy))

    # token by token and recurrent must equal the chunked prefill
    slow = Spec(cfg, dense, F64, chunked=False)
    st = slow.fresh_state()
    step = np.stack([slow([t], st)[0] for t in prompts[-1]])
    whole = slow(prompts[-1])
    checks = dict(
        chunked_vs_recurrent_max_abs=float(np.abs(ref[-1] - whole).max()),
        prefill_vs_decode_max_abs=float(np.abs(whole - step).max()))

    model = hf_model_from(checkpoint) if p["layout"] == "hf" else hf_model(cfg, dense)
    r["hf"], hf_greedy, r["hf_hidden"] = run_hf(model, prompts, NEW_TOKENS, HIDDEN_PROMPT)
    f32, emu = Spec(cfg, dense, F32), Spec(cfg, dense, F32, emu=True)
    emu_logits, emu_sets = [], []
    for i in prompts:
        emu_logits.append(emu(i))
        emu_sets += emu.expert_sets
    flips = int(sum((a != b).any(-1).sum() for a, b in zip(emu_sets, sets)))
    emu_greedy = [emu.greedy(i, NEW_TOKENS)[0] for i in prompts]

    logits = dict(
        hf32_vs_spec64=diff(r["hf"], ref), spec32_vs_spec64=diff([f32(i) for i in prompts], ref),
        bf16_emulation_vs_spec64=diff(emu_logits, ref))
    same = dict(hf32=agree(hf_greedy, r["greedy"]), bf16_emulation=agree(emu_greedy, r["greedy"]))
    if p["layout"] == "mlx":
        r["mlx"], mlx_greedy = run_mlx(checkpoint, prompts, NEW_TOKENS)
        logits.update(hf32_vs_mlx32=diff(r["hf"], r["mlx"]), mlx32_vs_spec64=diff(r["mlx"], ref),
                      mlx_cpu_bf16_vs_spec64=diff(run_mlx_bf16(checkpoint, prompts), ref))
        same.update(mlx32=agree(mlx_greedy, r["greedy"]))
    r["report"] = dict(
        preset=name, weight_seed=WEIGHT_SEED,
        logits_rms=float(np.sqrt(np.mean(np.concatenate([x.ravel() for x in ref]) ** 2))),
        hidden_rms_per_layer=[float(np.sqrt((h * h).mean())) for h in r["hidden"]],
        logits=logits,
        per_prompt_hf32_vs_spec64=[diff([a], [b]) for a, b in zip(r["hf"], ref)],
        per_prompt_bf16_emulation_vs_spec64=[diff([a], [b]) for a, b in zip(emu_logits, ref)],
        hidden_max_abs_hf32_vs_spec64=[float(np.abs(a - b).max()) for a, b in zip(r["hf_hidden"], r["hidden"])],
        bf16_emulation_one_layer_at_a_time=layer_errors(emu, r["hidden"]),
        bf16_emulation_expert_set_changes=f"{flips}/{sum(len(s) for s in sets)}",
        greedy_matching_prefix=same,
        min_top2_logit_gap_in_greedy=[min(g) for g in r["gaps"]],
        min_top2_logit_gap_in_prompts=[float((t[:, 1] - t[:, 0]).min()) for t in (np.sort(x)[:, -2:] for x in ref)],
        min_router_logit_gap_k_vs_k1=router_gaps, checks=checks)
    worst = logits["hf32_vs_spec64"]["max_abs"]
    other_choice = any((a.argmax(-1) != b.argmax(-1)).any() for a, b in zip(r["hf"], ref))
    if worst > LIMIT or other_choice or set(same["hf32"]) != {NEW_TOKENS}:
        print(json.dumps(r["report"], indent=1))
        raise SystemExit(f"transformers and numpy differ by {worst} (at most {LIMIT} is allowed) or choose "
                         "different tokens; nothing is written")
    return r


def layer_errors(emu, hidden):
    """One layer at a time from the reference hidden state: the tolerance of a layer test."""
    out = []
    for i in range(len(hidden) - 2):
        d = emu.layer(i, round_bf16(hidden[i]), emu.fresh_state()).astype(F64) - hidden[i + 1]
        out.append(dict(rel_rms=float(np.sqrt((d * d).mean() / (hidden[i + 1] ** 2).mean())),
                        max_abs=float(np.abs(d).max())))
    return out


def prefix(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(b))


def agree(a, b):
    return [prefix(u, v) for u, v in zip(a, b)]


def diff(a, b):
    """max / rms difference, top-1 agreement, over a list of [T,V] arrays."""
    d = np.concatenate([(x.astype(F64) - y).ravel() for x, y in zip(a, b)])
    top = np.concatenate([x.argmax(-1) == y.argmax(-1) for x, y in zip(a, b)])
    return dict(max_abs=float(np.abs(d).max()), rms=float(np.sqrt((d * d).mean())),
                top1=f"{int(top.sum())}/{len(top)}")


def store(p, checkpoint, r, out):
    from safetensors.numpy import save_file
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    for f in [*checkpoint.glob("model*.safetensors"), checkpoint / "config.json"]:
        shutil.copy(f, out / f.name)
    prompts = r["prompts"]
    save_file({f"logits.{len(i)}": x for i, x in zip(prompts, r["hf"])}, out / "logits_hf32.safetensors")
    if p["trace"]:
        save_file({f"logits.{len(i)}": x if len(i) < 10 else x[-1:] for i, x in zip(prompts, r["mlx"])},
                  out / "logits_mlx32.safetensors")
        hidden = {f"hidden.{i}": h for i, h in enumerate(r["hf_hidden"][:-1])}
        hidden["final_norm"] = r["hf_hidden"][-1]
        attention = p["full_attention_interval"] - 1
        trace = {k: v for k, v in r["trace"].items() if k.startswith(("layers.0.", f"layers.{attention}."))}
        conv, recurrent = r["state"][0]
        trace["state.0.conv"] = conv.astype(F32)
        trace["state.0.recurrent.last_head"] = recurrent[-1].astype(F32)
        trace[f"state.{attention}.k"], trace[f"state.{attention}.v"] = (a.astype(F32) for a in r["state"][attention])
        save_file({k: np.ascontiguousarray(v) for k, v in hidden.items()}, out / "hidden_hf32.safetensors")
        save_file({k: np.ascontiguousarray(v) for k, v in trace.items()}, out / "trace_spec64.safetensors")
    (out / "prompts.json").write_text(json.dumps(dict(
        prompts=prompts, greedy=r["greedy"], greedy_logit_gaps=[[round(x, 5) for x in g] for g in r["gaps"]],
        hidden_prompt=HIDDEN_PROMPT)))
    (out / "report.json").write_text(json.dumps(r["report"], indent=1))
    for f in out.iterdir():
        f.chmod(0o644)


def check(new, stored):
    """Checkpoint, configuration and prompts must be the same bytes; other arrays agree within 1e-4."""
    from safetensors.numpy import load_file
    bad = []
    for f in sorted(new.iterdir()):
        old = stored / f.name
        if not old.exists():
            bad.append(f"{f.name} is not stored")
        elif f.read_bytes() == old.read_bytes():
            print(f"{f.name}: same bytes")
        elif f.name in ("model.safetensors", "config.json", "prompts.json"):
            bad.append(f"{f.name} differs")
        elif f.suffix == ".safetensors":
            a, b = load_file(f), load_file(old)
            worst = max(float(np.abs(a[k].astype(F64) - b[k]).max()) for k in b) if a.keys() == b.keys() else np.inf
            print(f"{f.name}: within {worst:.1e}")
            if not worst <= 1e-4:
                bad.append(f"{f.name} differs by {worst:.1e}")
    print("\n".join(bad) or "as stored")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
