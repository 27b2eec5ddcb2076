"""Checkpoint files: writing the published layout, and reading both layouts as dense arrays."""

import json
from pathlib import Path

import numpy as np

from presets import PREFIX, hf_config, hf_weights

F32 = np.float32
GROUP = 64
# Stored as w - 1 in the published layout.
CENTRED = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
IGNORED = ("mtp.", "model.visual.")


def write_hf(folder, p):
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    folder.mkdir(parents=True)
    keep32 = ("A_log", "linear_attn.norm.weight")  # float32 in the published checkpoint
    out = {}
    for name, a in hf_weights(p).items():
        t = torch.from_numpy(a)
        out[name] = t if name.endswith(keep32) else t.to(torch.bfloat16)
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config(p), indent=1))
    # mlx_lm.convert insists on a tokenizer; any will do.
    tok = Tokenizer(models.WordLevel({f"t{i}": i for i in range(p["vocab_size"])}, unk_token="t0"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        dict(tokenizer_class="PreTrainedTokenizerFast", eos_token=f"t{p['vocab_size'] - 1}")))


def read_safetensors(path):
    """{name: (dtype string, raw ndarray)}; bf16 stays as uint16 bits."""
    raw = Path(path).read_bytes()
    n = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    kinds = dict(U32=np.uint32, F32=F32, BF16=np.uint16)
    out = {}
    for name, h in head.items():
        a, b = h["data_offsets"]
        out[name] = (h["dtype"], np.frombuffer(raw[8 + n + a:8 + n + b], kinds[h["dtype"]]).reshape(h["shape"]))
    return out


def bf16_bits_to_f32(u16):
    return (u16.astype(np.uint32) << 16).view(F32)


def unpack_affine(q, scales, biases, bits):
    """w = scale * code + bias, codes little-endian inside each u32."""
    per = 32 // bits
    codes = np.empty(q.shape[:-1] + (q.shape[-1] * per,), F32)
    for j in range(per):
        codes[..., j::per] = (q >> np.uint32(bits * j)) & np.uint32((1 << bits) - 1)
    return codes * np.repeat(scales, GROUP, -1) + np.repeat(biases, GROUP, -1)


def load_dense(folder):
    """Either layout -> (text configuration, {MLX name: dense array})."""
    cfg = json.loads((folder / "config.json").read_text())
    raw = {}
    for f in sorted(folder.glob("model*.safetensors")):
        raw.update(read_safetensors(f))
    f32 = {k: (bf16_bits_to_f32(a) if d == "BF16" else a) for k, (d, a) in raw.items()}
    if any(k.startswith(PREFIX) for k in f32):
        return cfg["text_config"], convert_names(f32, cfg["text_config"]["moe_intermediate_size"])
    quant = cfg["quantization"]
    dense = {}
    for k in f32:
        if k.endswith((".scales", ".biases")):
            continue
        stem = k.removesuffix(".weight")
        if stem + ".scales" in f32:
            bits = quant.get(stem, quant)["bits"]
            dense[k] = unpack_affine(f32[k], f32[stem + ".scales"], f32[stem + ".biases"], bits)
        else:
            dense[k] = f32[k]
    return cfg["text_config"], dense


def convert_names(tensors, inner):
    """Published layout -> MLX names and shapes. 1 + w is exact: float64 here, no rounding to bf16."""
    out = {}
    for name, a in tensors.items():
        if name.startswith(IGNORED):
            continue
        name = "language_model." + name.replace(PREFIX, "model.")
        if name.endswith(CENTRED):
            a = 1 + a.astype(np.float64)
        elif name.endswith("conv1d.weight"):
            a = a.transpose(0, 2, 1)
        stem = name.split("experts.")[0] + "switch_mlp."
        if name.endswith("experts.gate_up_proj"):
            out[stem + "gate_proj.weight"], out[stem + "up_proj.weight"] = a[:, :inner], a[:, inner:]
        elif name.endswith("experts.down_proj"):
            out[stem + "down_proj.weight"] = a
        else:
            out[name] = a
    return out
