"""The golden models: small configurations of the family, and random weights for them."""

import numpy as np

F32 = np.float32
WEIGHT_SEED = 20260
PREFIX = "model.language_model."

# Keys spelled as in config.json go into the configuration. The others:
#   prompts   (length, seed) of each prompt; seeds found with `make_golden.py PRESET --search N`
#   layout    "hf": the unconverted bfloat16 layout; "mlx": converted by mlx-lm
#   bits      width of the quantised matrices, where no override applies
#   mixed     give half of the matrices 4 bits (see `narrow_matrix`)
#   trace     also store hidden states and a trace of one layer of each kind
#   extras    add tensors that a text-only engine has to leave aside
DEFAULTS = dict(
    linear_conv_kernel_dim=4, rms_norm_eps=1e-6, rope_theta=10000000, partial_rotary_factor=0.25,
    layout="mlx", bits=4, mixed=False, trace=False, extras=False)

SMALL = dict(
    hidden_size=64, num_hidden_layers=4, full_attention_interval=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    linear_num_key_heads=2, linear_num_value_heads=4,
    linear_key_head_dim=64, linear_value_head_dim=64,
    num_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=64, shared_expert_intermediate_size=64,
    vocab_size=320, mrope_section=[3, 3, 2], extras=True)

PRESETS = {
    # The head sizes of Qwen3.6-35B-A3B (256 and 128), everything else small.
    "heads": dict(
        hidden_size=256, num_hidden_layers=8, full_attention_interval=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=256,
        linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=128, linear_value_head_dim=128,
        num_experts=16, num_experts_per_tok=4,
        moe_intermediate_size=128, shared_expert_intermediate_size=128,
        vocab_size=512, mrope_section=[11, 11, 10], trace=True,
        prompts=[(1, 18), (7, 7), (64, 16), (200, 7)]),
    # Half of those head sizes: still powers of two.
    "generic": dict(
        hidden_size=128, num_hidden_layers=4, full_attention_interval=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=128,
        linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=64, linear_value_head_dim=64,
        num_experts=12, num_experts_per_tok=4,
        moe_intermediate_size=128, shared_expert_intermediate_size=128,
        vocab_size=384, mrope_section=[6, 5, 5],
        prompts=[(1, 0), (7, 0), (64, 1), (130, 0)]),
    # Nothing in common with the real dimensions but the 64 of the quantisation groups. Key and
    # value heads of Gated DeltaNet differ in size, 33 rotary pairs, and an epsilon that matters.
    "odd": dict(
        hidden_size=192, num_hidden_layers=5, full_attention_interval=3,
        num_attention_heads=9, num_key_value_heads=3, head_dim=192,
        linear_num_key_heads=3, linear_num_value_heads=15,
        linear_key_head_dim=96, linear_value_head_dim=64,
        num_experts=11, num_experts_per_tok=3,
        moe_intermediate_size=64, shared_expert_intermediate_size=64,
        vocab_size=521, mrope_section=[11, 11, 11], partial_rotary_factor=0.34375,
        rope_theta=500000, rms_norm_eps=1e-3, trace=True,
        prompts=[(1, 18), (7, 17), (64, 1), (130, 1)]),
    # One tiny model twice: as published, and converted with 8 and 4 bits mixed.
    "raw": dict(SMALL, layout="hf", prompts=[(1, 2), (7, 2), (64, 7), (130, 13)]),
    "mixed": dict(SMALL, bits=8, mixed=True, prompts=[(1, 4), (7, 9), (64, 9), (130, 11)]),
}


def preset(name):
    return {**DEFAULTS, **PRESETS[name]}


def narrow_matrix(path):
    """Whether `mixed` stores the matrix at 4 bits. Of matrices that one launch may read together
    (q, k, v; qkv, z, b, a; gate, up), some are narrow and some wide; which ones alternates."""
    if path.endswith(("mlp.gate", "shared_expert_gate")):
        return False
    if ".layers." not in path:
        return path.endswith("embed_tokens")
    layer = int(path.split(".layers.")[1].split(".")[0])
    first, second = layer // 2 % 2 == 0, layer // 2 % 2 == 1
    return {
        "q_proj": second, "k_proj": first, "v_proj": second, "o_proj": first,
        "in_proj_qkv": second, "in_proj_z": first, "in_proj_b": first, "in_proj_a": second,
        "out_proj": second,
        "gate_proj": first ^ ("shared" in path), "up_proj": second ^ ("shared" in path),
        "down_proj": (layer % 2 == 0) ^ ("shared" in path),
    }[path.split(".")[-1]]


def hf_config(p):
    kinds = ["full_attention" if (i + 1) % p["full_attention_interval"] == 0
             else "linear_attention" for i in range(p["num_hidden_layers"])]
    text = dict(
        model_type="qwen3_5_moe_text", dtype="bfloat16", attention_bias=False,
        attention_dropout=0.0, attn_output_gate=True, hidden_act="silu",
        initializer_range=0.02, linear_conv_kernel_dim=p["linear_conv_kernel_dim"], layer_types=kinds,
        mamba_ssm_dtype="float32", max_position_embeddings=4096,
        partial_rotary_factor=p["partial_rotary_factor"], rms_norm_eps=p["rms_norm_eps"],
        tie_word_embeddings=False, use_cache=True, output_router_logits=False, router_aux_loss_coef=0.001,
        bos_token_id=None, eos_token_id=p["vocab_size"] - 1, pad_token_id=None,
        rope_parameters=dict(
            mrope_interleaved=True, mrope_section=p["mrope_section"],
            partial_rotary_factor=p["partial_rotary_factor"], rope_theta=p["rope_theta"], rope_type="default"),
    )
    own = ("prompts", "mrope_section", "rope_theta", "layout", "bits", "mixed", "trace", "extras")
    text.update({k: v for k, v in p.items() if k not in own and k not in text})
    root = dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"],
        model_type="qwen3_5_moe", text_config=text, tie_word_embeddings=False,
        transformers_version="4.57.1")
    if p["extras"]:
        text.update(mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False)
        root["vision_config"] = dict(
            model_type="qwen3_5_moe", depth=1, hidden_size=32, intermediate_size=64, num_heads=2,
            in_channels=3, patch_size=4, spatial_merge_size=2, temporal_patch_size=2,
            num_position_embeddings=16, out_hidden_size=p["hidden_size"])
    return root


def hf_weights(p, seed=WEIGHT_SEED):
    """Random weights under the names of the published layout.

    Gains keep every activation around 1 and let the residual stream grow slowly;
    the router's gain of 4 keeps bf16 noise from changing too many expert choices.
    """
    rng = np.random.default_rng(seed)
    H, V, L = p["hidden_size"], p["vocab_size"], p["num_hidden_layers"]
    E, I = p["num_experts"], p["moe_intermediate_size"]
    S = p["shared_expert_intermediate_size"]
    nq, nkv, hd = p["num_attention_heads"], p["num_key_value_heads"], p["head_dim"]
    nk, nv = p["linear_num_key_heads"], p["linear_num_value_heads"]
    dk, dv = p["linear_key_head_dim"], p["linear_value_head_dim"]
    conv = 2 * nk * dk + nv * dv

    def lin(*shape, gain=1.0):
        return rng.normal(0.0, gain / np.sqrt(shape[-1]), shape).astype(F32)

    def zero_centred(n):
        return rng.normal(0.0, 0.15, n).astype(F32)

    w = {}
    w[PREFIX + "embed_tokens.weight"] = rng.normal(0, 1, (V, H)).astype(F32)
    for i in range(L):
        b = f"{PREFIX}layers.{i}."
        w[b + "input_layernorm.weight"] = zero_centred(H)
        w[b + "post_attention_layernorm.weight"] = zero_centred(H)
        if (i + 1) % p["full_attention_interval"]:
            a = b + "linear_attn."
            w[a + "in_proj_qkv.weight"] = lin(conv, H)
            w[a + "in_proj_z.weight"] = lin(nv * dv, H)
            w[a + "in_proj_b.weight"] = lin(nv, H, gain=1.5)
            w[a + "in_proj_a.weight"] = lin(nv, H)
            w[a + "conv1d.weight"] = rng.normal(0, 0.6, (conv, 1, p["linear_conv_kernel_dim"])).astype(F32)
            w[a + "A_log"] = np.log(rng.uniform(0.05, 3.0, nv)).astype(F32)
            w[a + "dt_bias"] = rng.uniform(-4.0, 0.5, nv).astype(F32)
            w[a + "norm.weight"] = (1 + rng.normal(0, 0.15, dv)).astype(F32)
            w[a + "out_proj.weight"] = lin(H, nv * dv, gain=0.5)
        else:
            a = b + "self_attn."
            w[a + "q_proj.weight"] = lin(2 * nq * hd, H)
            w[a + "k_proj.weight"] = lin(nkv * hd, H)
            w[a + "v_proj.weight"] = lin(nkv * hd, H)
            w[a + "o_proj.weight"] = lin(H, nq * hd)
            w[a + "q_norm.weight"] = 0.3 + zero_centred(hd)
            w[a + "k_norm.weight"] = 0.3 + zero_centred(hd)
        m = b + "mlp."
        w[m + "gate.weight"] = lin(E, H, gain=4.0)
        w[m + "experts.gate_up_proj"] = lin(E, 2 * I, H)
        w[m + "experts.down_proj"] = lin(E, H, I)
        w[m + "shared_expert.gate_proj.weight"] = lin(S, H)
        w[m + "shared_expert.up_proj.weight"] = lin(S, H)
        w[m + "shared_expert.down_proj.weight"] = lin(H, S, gain=0.75)
        w[m + "shared_expert_gate.weight"] = lin(1, H)
    w[PREFIX + "norm.weight"] = zero_centred(H)
    w["lm_head.weight"] = lin(V, H, gain=3.0)
    if p["extras"]:
        w.update(extra_weights(H, rng))
    return w


def extra_weights(H, rng):
    """A few tensors of the draft head and of the vision tower. Large values: using one shows."""
    shapes = {
        "mtp.fc.weight": (H, 2 * H), "mtp.norm.weight": (H,),
        "mtp.pre_fc_norm_embedding.weight": (H,), "mtp.pre_fc_norm_hidden.weight": (H,),
        "mtp.layers.0.input_layernorm.weight": (H,), "mtp.layers.0.self_attn.q_norm.weight": (64,),
        "model.visual.patch_embed.proj.weight": (32, 3, 2, 4, 4), "model.visual.patch_embed.proj.bias": (32,),
        "model.visual.blocks.0.norm1.weight": (32,), "model.visual.merger.norm.weight": (32,),
    }
    return {name: rng.normal(0, 9, shape).astype(F32) for name, shape in shapes.items()}


def make_prompt(vocab, length, seed):
    return np.random.default_rng([length, seed]).integers(0, vocab, length).tolist()
