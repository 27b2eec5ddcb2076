"""Dimensions of lily-nano and the control tokens of its vocabulary."""

from dataclasses import dataclass

# Ids 0 .. CONTROL_START - 1 are byte-level BPE; the control tokens follow.
CONTROL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]
# Control tokens that a decoder prints: they are part of the text that lily parses.
VISIBLE_TOKENS = {
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
}

GROUP = 64  # weights that share one scale and one zero point


@dataclass(frozen=True)
class Config:
    """Sizes of one model. Field names are those of the checkpoint's `config.json`."""

    vocab_size: int = 8192
    hidden_size: int = 320
    num_hidden_layers: int = 12
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 128
    partial_rotary_factor: float = 0.25
    rope_theta: float = 100_000.0
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 8
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    num_experts: int = 24
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 64
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 16384

    @property
    def key_dim(self):
        """Width of all DeltaNet keys together."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self):
        """Width of all DeltaNet values together."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self):
        """Channels of the DeltaNet convolution: queries, keys, values."""
        return 2 * self.key_dim + self.value_dim

    def is_attention(self, layer):
        """Whether `layer` is full attention; the others are Gated DeltaNet."""
        return (layer + 1) % self.full_attention_interval == 0

    @property
    def attention_layers(self):
        return [i for i in range(self.num_hidden_layers) if self.is_attention(i)]

    @property
    def delta_layers(self):
        return [i for i in range(self.num_hidden_layers) if not self.is_attention(i)]


NANO = Config()
# For checks on a CPU: every part, few weights.
TINY = Config(
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    num_experts=8,
    num_experts_per_tok=2,
)
