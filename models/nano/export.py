"""Writes a model folder in the MLX 4-bit layout, and reads one back."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch

from config import CONTROL_TOKENS, GROUP
from params import Params
from quant import pack, quantise_groups

HERE = Path(__file__).resolve().parent
PREFIX = "language_model."


def config_json(c):
    """`config.json` of the checkpoint."""
    first = c.vocab_size - len(CONTROL_TOKENS)
    text = {
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": [
            "full_attention" if c.is_attention(i) else "linear_attention" for i in range(c.num_hidden_layers)
        ],
        "mamba_ssm_dtype": "float32",
        "tie_word_embeddings": False,
        "use_cache": True,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.01,
        "bos_token_id": first,
        "eos_token_id": first,
        "pad_token_id": None,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "shared_expert_intermediate_size": c.moe_intermediate_size,
    }
    for name in (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "full_attention_interval",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "partial_rotary_factor",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "rms_norm_eps",
        "max_position_embeddings",
    ):
        text[name] = getattr(c, name)
    rotary = int(c.head_dim * c.partial_rotary_factor) // 2
    third = rotary // 3
    text["rope_parameters"] = {
        "mrope_interleaved": True,
        "mrope_section": [rotary - 2 * third, third, third],
        "partial_rotary_factor": c.partial_rotary_factor,
        "rope_theta": c.rope_theta,
        "rope_type": "default",
    }
    quantization = {"group_size": GROUP, "bits": 4, "mode": "affine"}
    layers = [f"{PREFIX}model.layers.{i}" for i in range(c.num_hidden_layers)] + [f"{PREFIX}mtp.layers.0"]
    for layer in layers:
        for gate in ("gate", "shared_expert_gate"):
            quantization[f"{layer}.mlp.{gate}"] = {"group_size": GROUP, "bits": 8}
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "quantization": quantization,
        "quantization_config": quantization,
        "text_config": text,
        "tie_word_embeddings": False,
        "transformers_version": "4.57.1",
    }


_DELTA = {
    "gdn.qkv": "in_proj_qkv",
    "gdn.z": "in_proj_z",
    "gdn.b": "in_proj_b",
    "gdn.a": "in_proj_a",
    "gdn.out": "out_proj",
    "gdn.conv": "conv1d.weight",
    "gdn.A_log": "A_log",
    "gdn.dt_bias": "dt_bias",
    "gdn.norm": "norm.weight",
}
_ATTENTION = {
    "attn.q": "q_proj",
    "attn.k": "k_proj",
    "attn.v": "v_proj",
    "attn.o": "o_proj",
    "attn.q_norm": "q_norm.weight",
    "attn.k_norm": "k_norm.weight",
}
_MOE = {
    "moe.router": "mlp.gate",
    "shared.switch": "mlp.shared_expert_gate",
    "moe.gate": "mlp.switch_mlp.gate_proj",
    "moe.up": "mlp.switch_mlp.up_proj",
    "moe.down": "mlp.switch_mlp.down_proj",
    "shared.gate": "mlp.shared_expert.gate_proj",
    "shared.up": "mlp.shared_expert.up_proj",
    "shared.down": "mlp.shared_expert.down_proj",
    "norm.in": "input_layernorm.weight",
    "norm.post": "post_attention_layernorm.weight",
}


def names(c):
    """[(name in the checkpoint, kind, index)]. Names of quantised matrices have no `.weight`."""
    out = [
        ("model.embed_tokens", "embed", 0),
        ("lm_head", "head", 0),
        ("model.norm.weight", "norm.final", 0),
        ("mtp.fc", "mtp.fc", 0),
        ("mtp.pre_fc_norm_embedding.weight", "norm.mtp", 0),
        ("mtp.pre_fc_norm_hidden.weight", "norm.mtp", 1),
        ("mtp.norm.weight", "norm.mtp", 2),
    ]
    attention = c.attention_layers + [c.num_hidden_layers]
    for i in range(c.num_hidden_layers + 1):
        base = f"model.layers.{i}." if i < c.num_hidden_layers else "mtp.layers.0."
        if i in c.delta_layers:
            out += [(f"{base}linear_attn.{n}", k, c.delta_layers.index(i)) for k, n in _DELTA.items()]
        else:
            out += [(f"{base}self_attn.{n}", k, attention.index(i)) for k, n in _ATTENTION.items()]
        out += [(base + n, k, i) for k, n in _MOE.items()]
    return out


def tensors(params: Params):
    """{name: (dtype, shape, bytes)} of the whole checkpoint."""
    out = {}

    def put(name, dtype, array):
        out[PREFIX + name] = (dtype, list(array.shape), array.tobytes())

    def bf16(x):
        return x.bfloat16().contiguous().view(torch.int16).cpu().numpy()

    for name, kind, at in names(params.config):
        w = params.master[kind][at]
        bits = {"q4": 4, "q8": 8}.get(params.place[kind][0])
        if bits:
            codes, scale, bias = quantise_groups(w, bits)
            put(name + ".weight", "U32", pack(codes, bits).cpu().numpy().astype(np.uint32))
            put(name + ".scales", "BF16", bf16(scale))
            put(name + ".biases", "BF16", bf16(bias))
        elif kind == "gdn.A_log":
            put(name, "F32", w.cpu().numpy())
        else:
            put(name, "BF16", bf16(w[..., None] if kind == "gdn.conv" else w))
    return out


def write_safetensors(entries, path):
    """Writes `{name: (dtype, shape, bytes)}`; the file appears whole or not at all."""
    header, at = {"__metadata__": {"format": "mlx"}}, 0
    for name, (dtype, shape, data) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_suffix(".part")
    with open(partial, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in entries.values():
            f.write(data)
    partial.replace(path)


@torch.no_grad()
def write_model(params: Params, out):
    """The whole model folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config_json(params.config), indent=1) + "\n")
    for f in (HERE / "tokenizer").iterdir():
        shutil.copyfile(f, out / f.name)
    write_safetensors(tensors(params), out / "model.safetensors")


def read_safetensors(path):
    """{name: float32 tensor, or int64 words of a quantised matrix}."""
    raw = Path(path).read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + n])
    header.pop("__metadata__", None)
    out = {}
    for name, h in header.items():
        a, b = h["data_offsets"]
        data = raw[8 + n + a : 8 + n + b]
        if h["dtype"] == "BF16":
            x = torch.from_numpy(np.frombuffer(data, np.int16).copy()).view(torch.bfloat16).float()
        elif h["dtype"] == "F32":
            x = torch.from_numpy(np.frombuffer(data, np.float32).copy())
        else:
            x = torch.from_numpy(np.frombuffer(data, np.uint32).astype(np.int64))
        out[name.removeprefix(PREFIX)] = x.reshape(h["shape"])
    return out


@torch.no_grad()
def read_model(folder, config, device):
    """Parameters whose working copies hold the values of a written model."""
    params = Params(config, device)
    stored = {}
    for file in sorted(folder.glob("model*.safetensors")):  # one, or as install.py cuts it
        stored |= read_safetensors(file)
    for name, kind, at in names(config):
        bits = {"q4": 4, "q8": 8}.get(params.place[kind][0])
        if bits:
            words, per = stored[name + ".weight"], 32 // bits
            codes = (words[..., None] >> (torch.arange(per) * bits)) & (2**bits - 1)
            codes = codes.flatten(-2).unflatten(-1, (-1, GROUP)).float()
            w = (codes * stored[name + ".scales"][..., None] + stored[name + ".biases"][..., None]).flatten(-2)
        else:
            w = stored[name]
        params.master[kind][at].copy_(w.reshape(params.master[kind][at].shape))
    params.refresh(None)
    return params
