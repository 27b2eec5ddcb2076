"""The two libraries that the golden data is checked against: transformers and mlx-lm."""

import json

import numpy as np

from checkpoint import CENTRED

F32 = np.float32


# -------------------------------------------------------------------------- mlx-lm

def convert_mlx(source, target, bits, narrow=None):
    """mlx_lm.convert with groups of 64; `narrow(path)` names the matrices that get 4 bits."""
    import mlx.core as mx
    from mlx_lm.convert import convert
    mx.set_default_device(mx.cpu)
    if narrow is None:
        return convert(str(source), str(target), quantize=True, q_group_size=64, q_bits=bits)

    def predicate(path, _):
        if path.endswith(("mlp.gate", "shared_expert_gate")):
            return dict(group_size=64, bits=8)   # as the library does by itself
        return dict(group_size=64, bits=4) if narrow(path) else True
    convert(str(source), str(target), quantize=True, q_group_size=64, q_bits=bits, quant_predicate=predicate)


def run_mlx(folder, prompts, count):
    """Logits of every prompt and greedy ids, float32 on the exactly dequantised weights."""
    import mlx.core as mx
    from mlx_lm.utils import dequantize_model, load_model
    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)      # scales and biases too: exact fp32 dequantisation
    model = dequantize_model(model)
    logits, cont = [], []
    for ids in prompts:
        cache = model.make_cache()
        lg = model(mx.array([ids]), cache=cache)
        logits.append(np.array(lg[0]))
        out = []
        for _ in range(count):
            out.append(int(mx.argmax(lg[0, -1]).item()))
            lg = model(mx.array([[out[-1]]]), cache=cache)
        cont.append(out)
    return logits, cont


def run_mlx_bf16(folder, prompts):
    """The checkpoint as stored, on the CPU backend: for the report only."""
    import mlx.core as mx
    from mlx_lm.utils import load_model
    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder)
    return [np.array(model(mx.array([i]))[0].astype(mx.float32)) for i in prompts]


# -------------------------------------------------------------------- transformers

def hf_state(cfg, dense):
    import torch
    out = {}
    for k, a in dense.items():
        k = k.removeprefix("language_model.")
        if ".switch_mlp." in k:
            continue
        if k.endswith("conv1d.weight"):
            a = a.transpose(0, 2, 1)
        elif k.endswith(CENTRED):
            a = a - F32(1)           # transformers adds it back; exact for these values
        out[k] = torch.from_numpy(np.array(a, order="C"))
    for i in range(cfg["num_hidden_layers"]):
        src = f"language_model.model.layers.{i}.mlp.switch_mlp."
        dst = f"model.layers.{i}.mlp.experts."
        out[dst + "gate_up_proj"] = torch.from_numpy(np.concatenate(
            [dense[src + "gate_proj.weight"], dense[src + "up_proj.weight"]], 1))
        out[dst + "down_proj"] = torch.from_numpy(dense[src + "down_proj.weight"].copy())
    return out


def text_config(cfg):
    from transformers import Qwen3_5MoeTextConfig
    tc = Qwen3_5MoeTextConfig(**{k: v for k, v in cfg.items() if k not in ("model_type", "dtype")})
    tc._attn_implementation = "eager"
    tc._experts_implementation = "eager"
    return tc


def hf_model(cfg, dense):
    """transformers over weights that were dequantised here."""
    import torch
    from transformers import Qwen3_5MoeForCausalLM
    model = Qwen3_5MoeForCausalLM(text_config(cfg)).to(torch.float32).eval()
    model.load_state_dict(hf_state(cfg, dense), strict=True)
    return model


def hf_model_from(folder):
    """transformers over a folder in the published layout, by its own loader; float32."""
    import torch
    from transformers import Qwen3_5MoeForCausalLM
    cfg = json.loads((folder / "config.json").read_text())["text_config"]
    model, info = Qwen3_5MoeForCausalLM.from_pretrained(
        folder, config=text_config(cfg), dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager", output_loading_info=True)
    if info["missing_keys"] or info["mismatched_keys"]:
        raise SystemExit(f"transformers did not find its weights in {folder}: {info}")
    return model.eval()


def run_hf(model, prompts, count, hidden_for):
    """Logits of every prompt, greedy ids, and the hidden states of prompt `hidden_for`."""
    import torch
    torch.set_num_threads(2)
    logits, cont, hidden = [], [], None
    with torch.no_grad():
        for n, ids in enumerate(prompts):
            grabbed, hooks = [], []
            if n == hidden_for:
                hooks.append(model.model.embed_tokens.register_forward_hook(
                    lambda m, a, o: grabbed.append(o[0])))
                for layer in list(model.model.layers) + [model.model.norm]:
                    hooks.append(layer.register_forward_hook(
                        lambda m, a, o: grabbed.append((o[0] if isinstance(o, tuple) else o)[0])))
            out = model(torch.tensor([ids]), use_cache=True)
            for h in hooks:
                h.remove()
            if n == hidden_for:
                hidden = [g.numpy() for g in grabbed]
            logits.append(out.logits[0].numpy())
            kw = "cache" if hasattr(out, "cache") else "past_key_values"
            new, cache, lg = [], getattr(out, kw), out.logits[0, -1]
            for _ in range(count):
                new.append(int(lg.argmax()))
                out = model(torch.tensor([[new[-1]]]), use_cache=True, **{kw: cache})
                lg = out.logits[0, -1]
            cont.append(new)
    return logits, cont, hidden
