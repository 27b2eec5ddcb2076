"""Affine quantisation in groups of 64, by the rule of the MLX converter."""

import torch

from config import GROUP


def _bf16(x):
    """f32 x with bfloat16 values, rounded to nearest even. Said in integers: a compiler drops a pair of casts."""
    bits = x.view(torch.int32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).view(torch.float32)


def quantise_groups(w, bits):
    """w `[..., n * 64]` f32 -> (codes `[..., n, 64]` f32, scales, biases `[..., n]` f32 as bf16 values).

    The end of the range that lies farther from zero is met exactly, and zero is a code.
    """
    top = 2**bits - 1
    w = w.float().unflatten(-1, (-1, GROUP))
    low, high = w.amin(-1), w.amax(-1)
    far_low = low.abs() > high.abs()
    scale = ((high - low) / top).clamp_min(1e-7)
    scale = torch.where(far_low, scale, -scale)
    edge = torch.where(far_low, low, high)
    zero = torch.round(edge / scale)
    scale = torch.where(zero != 0, edge / zero, scale)
    bias = torch.where(zero != 0, edge, torch.zeros_like(edge))
    codes = torch.round((w - bias[..., None]) / scale[..., None]).clamp(0, top)
    return codes, _bf16(scale), _bf16(bias)


def fake_quantise(w, bits):
    """The values that a quantised `w` stands for, same shape."""
    codes, scale, bias = quantise_groups(w, bits)
    return (codes * scale[..., None] + bias[..., None]).flatten(-2)


def pack(codes, bits):
    """codes `[..., n, 64]` -> uint32 words as int64 `[..., n * 64 * bits / 32]`, low bits first."""
    per = 32 // bits
    c = codes.to(torch.int64).flatten(-2).unflatten(-1, (-1, per))
    shift = torch.arange(per, device=c.device) * bits
    return (c << shift).sum(-1)
