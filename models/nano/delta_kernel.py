"""Triton kernel: inverse of a unit lower triangular matrix by forward substitution."""

import torch
import triton
import triton.language as tl


@triton.jit
def _invert(a_ptr, t_ptr, C: tl.constexpr):
    # One program owns one matrix. Row i of the inverse is e_i - sum_j a_ij t_j.
    base = tl.program_id(0) * C * C
    i = tl.arange(0, C)
    at = base + i[:, None] * C + i[None, :]
    t = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for row in range(1, C):
        a = tl.load(a_ptr + base + row * C + i)  # zero from the diagonal on
        new = tl.sum(a[:, None] * t, 0)
        t = tl.where(i[:, None] == row, t - new[None, :], t)
    tl.store(t_ptr + at, t)


def invert(a, warps=4):
    """`(I + a)^-1` for strictly lower triangular `a [n, c, c]` f32."""
    a = a.contiguous()
    t = torch.empty_like(a)
    _invert[(a.shape[0],)](a, t, a.shape[-1], num_warps=warps)
    return t
