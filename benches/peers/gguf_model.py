"""Writes a random model of architecture qwen35moe for llama.cpp, of the shapes of a lily checkpoint.

Types follow what llama-quantize does for Q4_0: matrices in Q4_0, router, convolution and vectors in f32.
One exception favours llama.cpp: the output matrix is Q4_0 too, not Q6_K, so that both engines read the
same bytes for it.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np

# A block of Q4_0: an f16 scale and 32 codes of 4 bits.
BLOCK, BLOCK_BYTES = 32, 18
# Random blocks that are made once and repeated from changing offsets; speed does not depend on values.
POOL_BLOCKS = 1 << 20


def text_config(folder: Path) -> dict:
    config = json.loads((folder / "config.json").read_text())
    return config.get("text_config", config)


def is_attention(config: dict, layer: int) -> bool:
    types = config.get("layer_types")
    if types:
        return types[layer] == "full_attention"
    return (layer + 1) % config.get("full_attention_interval", 4) == 0


def layer_tensors(config: dict, layer: int, fused: bool):
    """Names behind `blk.N.` and shapes, slowest axis first, of one layer."""
    hidden = config["hidden_size"]
    inner = config["moe_intermediate_size"]
    shared = config["shared_expert_intermediate_size"]
    experts = config["num_experts"]
    yield "attn_norm.weight", (hidden,)
    yield "post_attention_norm.weight", (hidden,)
    if is_attention(config, layer):
        head = config["head_dim"]
        queries = head * config["num_attention_heads"]
        keys = head * config["num_key_value_heads"]
        yield "attn_q.weight", (2 * queries, hidden)
        yield "attn_k.weight", (keys, hidden)
        yield "attn_v.weight", (keys, hidden)
        yield "attn_output.weight", (hidden, queries)
        yield "attn_q_norm.weight", (head,)
        yield "attn_k_norm.weight", (head,)
    else:
        v_heads = config["linear_num_value_heads"]
        keys = config["linear_key_head_dim"] * config["linear_num_key_heads"]
        values = config["linear_value_head_dim"] * v_heads
        channels = 2 * keys + values
        yield "attn_qkv.weight", (channels, hidden)
        yield "attn_gate.weight", (values, hidden)
        yield "ssm_conv1d.weight", (channels, config["linear_conv_kernel_dim"])
        yield "ssm_dt.bias", (v_heads,)
        yield "ssm_a", (v_heads,)
        yield "ssm_beta.weight", (v_heads, hidden)
        yield "ssm_alpha.weight", (v_heads, hidden)
        yield "ssm_norm.weight", (config["linear_value_head_dim"],)
        yield "ssm_out.weight", (hidden, values)
    yield "ffn_gate_inp.weight", (experts, hidden)
    if fused:
        yield "ffn_gate_up_exps.weight", (experts, 2 * inner, hidden)
    else:
        yield "ffn_gate_exps.weight", (experts, inner, hidden)
        yield "ffn_up_exps.weight", (experts, inner, hidden)
    yield "ffn_down_exps.weight", (experts, hidden, inner)
    yield "ffn_gate_inp_shexp.weight", (hidden,)
    yield "ffn_gate_shexp.weight", (shared, hidden)
    yield "ffn_up_shexp.weight", (shared, hidden)
    yield "ffn_down_shexp.weight", (hidden, shared)


def tensors(config: dict, fused: bool):
    """Every tensor of the file: name and shape, slowest axis first."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield "token_embd.weight", (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in layer_tensors(config, layer, fused):
            yield f"blk.{layer}.{name}", shape
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (vocab, hidden)


def is_quantized(name: str, shape: tuple) -> bool:
    plain = name.endswith("_norm.weight") or "ffn_gate_inp" in name or "ssm_conv1d" in name
    return len(shape) >= 2 and not plain


def stored_bytes(name: str, shape: tuple) -> int:
    elements = int(np.prod(shape))
    return elements // BLOCK * BLOCK_BYTES if is_quantized(name, shape) else 4 * elements


def read_bytes_per_token(config: dict, fused: bool) -> int:
    """Bytes of weights that one decode step reads: all but the embedding, and the chosen experts."""
    used = config["num_experts_per_tok"] / config["num_experts"]
    total = 0.0
    for name, shape in tensors(config, fused):
        if name != "token_embd.weight":
            total += stored_bytes(name, shape) * (used if "_exps." in name else 1.0)
    return int(total)


class Values:
    """Random contents, of the size that weights of a matrix with `k` inputs have."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.pool = self.random.integers(0, 256, (POOL_BLOCKS, BLOCK_BYTES), dtype=np.uint8)

    def q4_0(self, blocks: int, k: int) -> np.ndarray:
        # Codes less 8 have a standard deviation of 4.6; rows then have one of 1.
        spread = self.random.uniform(0.5, 1.5, POOL_BLOCKS) / (4.6 * np.sqrt(k))
        self.pool[:, :2] = spread.astype(np.float16).view(np.uint8).reshape(-1, 2)
        start = int(self.random.integers(POOL_BLOCKS))
        return np.resize(np.roll(self.pool, start, axis=0), (blocks, BLOCK_BYTES))

    def plain(self, name: str, shape: tuple) -> np.ndarray:
        if name.endswith("norm.weight"):
            return np.ones(shape, np.float32)
        if name.endswith("ssm_a"):
            return -self.random.uniform(0.1, 16.0, shape).astype(np.float32)
        if name.endswith("ssm_dt.bias"):
            return self.random.uniform(-4.0, 1.0, shape).astype(np.float32)
        spread = 1.0 / np.sqrt(shape[-1])
        return (spread * self.random.standard_normal(shape)).astype(np.float32)


def header(writer: gguf.GGUFWriter, config: dict) -> None:
    """What llama.cpp's own conversion writes about this architecture."""
    rope = config["rope_parameters"]
    arch = "qwen35moe"
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope.get("mrope_section", [11, 11, 10]), 0][:4])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    writer.add_uint32(f"{arch}.full_attention_interval", config.get("full_attention_interval", 4))
    # No tokenizer: ids go in and out.
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)


def write(folder: Path, out: Path, fused: bool = False, seed: int = 0) -> None:
    """Writes `out` with the shapes of the checkpoint in `folder`; memory stays below one tensor."""
    config = text_config(folder)
    writer = gguf.GGUFWriter(out, "qwen35moe")
    header(writer, config)
    for name, shape in tensors(config, fused):
        size = stored_bytes(name, shape)
        if is_quantized(name, shape):
            row_bytes = shape[-1] // BLOCK * BLOCK_BYTES
            kind = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor_info(name, (*shape[:-1], row_bytes), np.dtype(np.uint8), size, kind)
        else:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    values = Values(seed)
    for name, shape in tensors(config, fused):
        if is_quantized(name, shape):
            writer.write_tensor_data(values.q4_0(int(np.prod(shape)) // BLOCK, shape[-1]))
        else:
            writer.write_tensor_data(values.plain(name, shape))
    writer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
