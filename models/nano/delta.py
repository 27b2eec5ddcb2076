"""The gated delta rule over whole sequences, `CHUNK` tokens at a time.

Per token, with state `S [key, value]`:

    S <- a S;   r = b (v - S^T k);   S <- S + k r^T;   o = S^T q

Unrolled over a chunk (`G` = running sum of log a in the chunk, D_ij = exp(G_i - G_j) for j <= i):

    T = (I + A)^-1,  A_ij = b_i D_ij (k_i . k_j) for j < i
    U = T (b v),  W = T (b e^G k)
    R = U - W S0,  O = e^G q S0 + ((q k^T) o D) R
    S1 = M S0 + N,  M = e^{G_C} I - K~^T W,  N = K~^T U,  K~ = e^{G_C - G} k

Everything but `S1 = M S0 + N` is done for all chunks at once.
"""

import torch

CHUNK = 64


# ------------------------------------------------------------------ inverse


def _invert_plain(a):
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    t = torch.linalg.solve_triangular(eye + a, eye.expand_as(a), upper=False, unitriangular=True)
    return t.contiguous()


_KERNEL = None


def _kernel():
    """The Triton kernel, made at the first use: importing this file needs no Triton."""
    global _KERNEL
    if _KERNEL is None:
        from delta_kernel import invert

        _KERNEL = invert
    return _KERNEL


warps = 0  # of the kernel; 0 is the plain form. Set by `choose_inverse`.


@torch.library.custom_op("nano::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(a: torch.Tensor) -> torch.Tensor:
    """`(I + a)^-1` for strictly lower triangular `a [n, CHUNK, CHUNK]` f32."""
    return _kernel()(a, warps) if warps and a.is_cuda else _invert_plain(a)


@unit_lower_inverse.register_fake
def _(a):
    return a.new_empty(a.shape)


def _inverse_backward(ctx, grad):
    (t,) = ctx.saved_tensors
    tt = t.transpose(-1, -2)
    return -(tt @ grad @ tt).tril(-1)


unit_lower_inverse.register_autograd(
    _inverse_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output)
)


def choose_inverse(device):
    """Takes the fastest right form of the inverse on `device`; returns what was found, for the log."""
    global warps
    warps = 0
    if device.type != "cuda":
        return "plain"
    a = torch.randn(8192, CHUNK, CHUNK, device=device).mul(0.2).tril(-1)
    want = _invert_plain(a.double())

    def clock(f):
        f()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(5):
            f()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 5

    times = {0: clock(lambda: _invert_plain(a))}
    try:
        for n in (1, 2, 4, 8):
            if ((_kernel()(a, n) - want).norm() / want.norm()).item() < 1e-4:
                times[n] = clock(lambda: _kernel()(a, n))
    except Exception as problem:  # no Triton or no compiler: the plain form serves
        return f"plain, kernel failed: {problem!r}"[:300]
    warps = min(times, key=times.get)
    return ", ".join(f"{n or 'plain'} {ms:.2f} ms" for n, ms in times.items()) + f", taken {warps or 'plain'}"


# --------------------------------------------------------- state over chunks


@torch.library.custom_op("nano::chunk_states", mutates_args=())
def chunk_states(m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """States before each chunk, `s[0] = 0`, `s[c + 1] = m[c] s[c] + n[c]`.

    m `[chunks, batch, key, key]`, n and the result `[chunks, batch, key, value]`, all f32.
    """
    s = n.new_empty(n.shape)
    s[0].zero_()
    for c in range(len(n) - 1):
        torch.baddbmm(n[c], m[c], s[c], out=s[c + 1])
    return s


@chunk_states.register_fake
def _(m, n):
    return n.new_empty(n.shape)


@torch.library.custom_op("nano::chunk_states_grad", mutates_args=())
def chunk_states_grad(m: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of each `s[c + 1]` as seen by `n[c]`: `d[c] = grad[c + 1] + m[c + 1]^T d[c + 1]`."""
    d = grad.new_empty(grad.shape)
    d[-1].zero_()
    mt = m.transpose(-1, -2)
    for c in range(len(grad) - 2, -1, -1):
        torch.baddbmm(grad[c + 1], mt[c + 1], d[c + 1], out=d[c])
    return d


@chunk_states_grad.register_fake
def _(m, grad):
    return grad.new_empty(grad.shape)


def _states_backward(ctx, grad):
    m, s = ctx.saved_tensors
    d = chunk_states_grad(m, grad.contiguous())
    return d @ s.transpose(-1, -2), d


chunk_states.register_autograd(
    _states_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output)
)


# ------------------------------------------------------------- whole sequence


def delta_chunked(q, k, v, log_decay, beta):
    """q, k `[b, t, k_heads, key]`, v `[b, t, v_heads, value]`, log_decay, beta `[b, t, v_heads]`.

    All f32; q and k have unit length, q is scaled. t is a multiple of CHUNK. Returns
    `(o [b, t, v_heads, value], state [b, v_heads, key, value])`.
    """
    b, t, kh, dk = q.shape
    vh, dv = v.shape[2:]
    n, rep = t // CHUNK, vh // kh

    def split(x):  # [b, t, h, d] -> [n, b, h, CHUNK, d]
        return x.reshape(b, n, CHUNK, x.shape[2], -1).permute(1, 0, 3, 2, 4)

    q, k = split(q), split(k)
    v = split(v).reshape(n, b, kh, rep, CHUNK, dv)
    g = split(log_decay[..., None]).reshape(n, b, kh, rep, CHUNK).cumsum(-1)
    beta = split(beta[..., None]).reshape(n, b, kh, rep, CHUNK, 1)
    decay = torch.exp((g[..., :, None] - g[..., None, :]).tril()).tril()
    kk = (k @ k.transpose(-1, -2))[:, :, :, None]
    qk = (q @ k.transpose(-1, -2))[:, :, :, None] * decay
    a = (beta * decay * kk).tril(-1)
    inverse = unit_lower_inverse(a.reshape(-1, CHUNK, CHUNK)).reshape(a.shape)
    grow = torch.exp(g)[..., None]
    last = g[..., -1:]
    k1, q1 = k[:, :, :, None], q[:, :, :, None]
    u = inverse @ (beta * v)
    w = inverse @ (beta * grow * k1)
    tail = (torch.exp(last - g)[..., None] * k1).transpose(-1, -2)  # K~^T
    eye = torch.eye(dk, dtype=q.dtype, device=q.device)
    m = torch.exp(last)[..., None] * eye - tail @ w
    s = chunk_states(m.reshape(n, -1, dk, dk), (tail @ u).reshape(n, -1, dk, dv))
    s = s.reshape(n, b, kh, rep, dk, dv)
    o = (grow * q1) @ s + qk @ (u - w @ s)
    final = m[-1] @ s[-1] + tail[-1] @ u[-1]
    o = o.permute(1, 0, 4, 2, 3, 5)
    return o.reshape(b, t, vh, dv), final.reshape(b, vh, dk, dv)


def delta_step(q, k, v, log_decay, beta, state):
    """One token of the recurrence. q, k `[b, k_heads, key]`, state `[b, v_heads, key, value]`."""
    rep = v.shape[1] // q.shape[1]
    q, k = q.repeat_interleave(rep, 1), k.repeat_interleave(rep, 1)
    state = state * torch.exp(log_decay)[..., None, None]
    r = beta[..., None] * (v - torch.einsum("bhkv,bhk->bhv", state, k))
    state = state + k[..., :, None] * r[..., None, :]
    return torch.einsum("bhkv,bhk->bhv", state, q), state
