"""lily-nano's forward pass over packed rows, for training.

Rows hold several documents. `starts` marks the first token of each; nothing passes from one
document to the next. The residual stream, states, norms, softmax and routing are f32; inputs of
matrix products are bfloat16 on a GPU.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from config import Config
from delta import delta_chunked
from params import Params

RESET = -40.0  # log decay that forgets everything


class Layout(NamedTuple):
    """Where documents lie in a batch of rows."""

    position: torch.Tensor  # [b, t] int64, position inside the document
    reset: torch.Tensor  # [b, t, 1] f32, RESET at the first token of a document, else 0
    reach: torch.Tensor  # [b, t, taps - 1] f32, 1 where the token j + 1 before is of the same document
    cos: torch.Tensor  # [b, t, 1, rotary / 2] f32
    sin: torch.Tensor
    mask: torch.Tensor | None  # [b, 1, t, t] bool, for the plain attention
    bounds: torch.Tensor | None  # [documents + 1] int32, for the attention over documents


def layout(config: Config, position, varlen, documents):
    """Layout of `position [b, t]`.

    `varlen` True gives bounds with fixed room for `documents`, False a mask, None neither (one document a row).
    """
    b, t = position.shape
    rotary = int(config.head_dim * config.partial_rotary_factor)
    rate = config.rope_theta ** (-torch.arange(0, rotary, 2, device=position.device) / rotary)
    angle = position[..., None, None].float() * rate
    first = position == 0
    reach = torch.stack([position > j for j in range(config.linear_conv_kernel_dim - 1)], -1).float()
    mask = bounds = None
    if varlen:
        at = torch.nonzero(first.flatten()).flatten().int()
        bounds = torch.full((documents + 1,), b * t, dtype=torch.int32, device=position.device)
        bounds[: len(at)] = at
    elif varlen is False:
        number = first.cumsum(1)
        same = number[:, :, None] == number[:, None, :]
        mask = same.tril()[:, None]
    return Layout(position, first.float()[..., None] * RESET, reach, angle.cos(), angle.sin(), mask, bounds)


def rms(x, weight, eps):
    """Root mean square norm over the last axis, in f32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def linear(x, w):
    """x times w transposed, in the type of w."""
    return F.linear(x.to(w.dtype), w)


def rotate(x, cos, sin):
    """Rotary embedding of the first part of each head."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def delta_heads(c: Config, y):
    """q, k (unit length, q scaled) and v of the rows behind the convolution, all f32."""
    b, t, _ = y.shape
    q, k, v = y.float().split([c.key_dim, c.key_dim, c.value_dim], -1)
    q, k = (a.reshape(b, t, c.linear_num_key_heads, c.linear_key_head_dim) for a in (q, k))
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * c.linear_key_head_dim**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    return q, k, v.reshape(b, t, c.linear_num_value_heads, c.linear_value_head_dim)


def delta_gates(c: Config, w, x):
    """Log decay, beta `[b, t, heads]` and the output gate z `[b, t, heads, value]`, all f32."""
    b, t, _ = x.shape
    z = linear(x, w["gdn.z"]).float().reshape(b, t, c.linear_num_value_heads, c.linear_value_head_dim)
    beta = torch.sigmoid(linear(x, w["gdn.b"]).float())
    decay = -w["gdn.A_log"].exp() * F.softplus(linear(x, w["gdn.a"]).float() + w["gdn.dt_bias"])
    return decay, beta, z


def delta_inputs(c: Config, w, x, reach):
    """Projections, convolution and gates of a DeltaNet layer; x is normalised `[b, t, hidden]`.

    Returns q, k, v, log decay, beta (f32), z, and the rows before the convolution.
    """
    qkv = linear(x, w["gdn.qkv"])
    taps = w["gdn.conv"]
    y = qkv.float() * taps[:, -1]
    for j in range(reach.shape[-1]):
        before = F.pad(qkv, (0, 0, j + 1, 0))[:, : x.shape[1]].float()
        y = y + before * reach[..., j : j + 1] * taps[:, -2 - j]
    return *delta_heads(c, F.silu(y)), *delta_gates(c, w, x), qkv


def delta_output(c: Config, w, o, z):
    """Gated norm and output projection."""
    o = rms(o, w["gdn.norm"], c.rms_norm_eps) * F.silu(z)
    return linear(o.flatten(-2), w["gdn.out"])


def delta_layer(c: Config, w, x, lay: Layout):
    n = rms(x, w["norm.in"], c.rms_norm_eps)
    q, k, v, decay, beta, z, _ = delta_inputs(c, w, n, lay.reach)
    o, _ = delta_chunked(q, k, v, decay + lay.reset, beta)
    return x + delta_output(c, w, o, z).float()


def attention_inputs(c: Config, w, x, cos, sin):
    """Rotated q `[b, t, heads, d]`, its gate, k, v; x is normalised."""
    b, t, _ = x.shape
    qg = linear(x, w["attn.q"]).reshape(b, t, c.num_attention_heads, 2, c.head_dim)
    q, gate = qg[:, :, :, 0], qg[:, :, :, 1]
    k = linear(x, w["attn.k"]).reshape(b, t, c.num_key_value_heads, c.head_dim)
    v = linear(x, w["attn.v"]).reshape(b, t, c.num_key_value_heads, c.head_dim)
    q = rotate(rms(q, w["attn.q_norm"], c.rms_norm_eps), cos, sin).to(v.dtype)
    k = rotate(rms(k, w["attn.k_norm"], c.rms_norm_eps), cos, sin).to(v.dtype)
    return q, gate, k, v


def attend(q, k, v, lay: Layout):
    """Causal attention inside documents, `[b, t, heads, d]`."""
    b, t = q.shape[:2]
    if lay.bounds is not None:
        from torch.nn.attention.varlen import varlen_attn

        rep = q.shape[2] // k.shape[2]
        q1, k1, v1 = (
            a.contiguous().flatten(0, 1) for a in (q, k.repeat_interleave(rep, 2), v.repeat_interleave(rep, 2))
        )
        o = varlen_attn(q1, k1, v1, lay.bounds, lay.bounds, t, t, window_size=(-1, 0))
        return o.reshape(q.shape)
    o = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=lay.mask, enable_gqa=True
    )
    return o.transpose(1, 2)


def attention_output(c: Config, w, o, gate):
    return linear((o.float() * torch.sigmoid(gate.float())).flatten(-2), w["attn.o"])


def attention_layer(c: Config, w, x, lay: Layout):
    n = rms(x, w["norm.in"], c.rms_norm_eps)
    q, gate, k, v = attention_inputs(c, w, n, lay.cos, lay.sin)
    return x + attention_output(c, w, attend(q, k, v, lay), gate).float()


def route(c: Config, w, n):
    """Weights `[..., experts]` (zero where not chosen) and probabilities of the router, f32."""
    p = torch.softmax(F.linear(n, w["moe.router"].float()), -1)
    best, chosen = p.topk(c.num_experts_per_tok, -1)
    weight = torch.zeros_like(p).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
    return weight, p


def moe(c: Config, w, n):
    """Mixture of experts of a normalised input. Returns the sum and the balance loss.

    All experts are computed and weighted, most by zero: for experts this narrow one large matrix
    product is faster than sorting tokens by expert.
    """
    weight, p = route(c, w, n)
    gate, up, down = w["moe.gate"], w["moe.up"], w["moe.down"]
    x = n.to(gate.dtype)
    h = F.silu(linear(x, gate.flatten(0, 1)).float()) * linear(x, up.flatten(0, 1)).float()
    h = h.unflatten(-1, (c.num_experts, -1)) * weight[..., None]
    y = linear(h.flatten(-2), down.transpose(0, 1).flatten(1)).float()
    s = F.silu(linear(x, w["shared.gate"]).float()) * linear(x, w["shared.up"]).float()
    s = linear(s, w["shared.down"]).float()
    y = y + s * torch.sigmoid(F.linear(n, w["shared.switch"].float()))
    share = (weight > 0).float().flatten(0, -2).mean(0) / c.num_experts_per_tok
    balance = c.num_experts * (share.detach() * p.flatten(0, -2).mean(0)).sum()
    return y, balance, share


def moe_layer(c: Config, w, x):
    y, balance, share = moe(c, w, rms(x, w["norm.post"], c.rms_norm_eps))
    return x + y, balance, share


def token_loss(logits_input, head, target, weight):
    """Weighted cross entropy. Returns (sum of weighted losses, plain losses [n])."""
    logits = linear(logits_input, head).float()
    loss = F.cross_entropy(logits, target, reduction="none")
    return (loss * weight).sum(), loss.detach()


DELTA = ["gdn.qkv", "gdn.z", "gdn.b", "gdn.a", "gdn.out", "gdn.conv", "gdn.A_log", "gdn.dt_bias", "gdn.norm"]
ATTENTION = ["attn.q", "attn.k", "attn.v", "attn.o", "attn.q_norm", "attn.k_norm"]
MOE = ["moe.gate", "moe.up", "moe.down", "moe.router", "shared.gate", "shared.up", "shared.down", "shared.switch"]


def layer_weights(config: Config, work):
    """One dictionary of weights per layer; the last is the multi-token prediction layer."""
    parts = {k: v.unbind(0) for k, v in work.items()}
    out = []
    for i in range(config.num_hidden_layers + 1):
        if i in config.delta_layers:
            names, at = DELTA, config.delta_layers.index(i)
        else:
            names, at = ATTENTION, (config.attention_layers + [config.num_hidden_layers]).index(i)
        w = {k: parts[k][at] for k in names}
        w |= {k: parts[k][i] for k in MOE + ["norm.in", "norm.post"]}
        out.append(w)
    return out


class Model:
    """The training step's forward pass. `compile_with` wraps the functions of the layers."""

    def __init__(self, params: Params, compile_with=lambda f: f):
        self.params, self.c = params, params.config
        c = self.c
        self.plain = {
            "delta": lambda w, x, lay: delta_layer(c, w, x, lay),
            "attention": lambda w, x, lay: attention_layer(c, w, x, lay),
            "moe": lambda w, x: moe_layer(c, w, x),
            "norm": lambda x, w: rms(x, w, c.rms_norm_eps),
            "loss": token_loss,
        }
        for name, function in self.plain.items():
            setattr(self, name, compile_with(function))

    def layer(self, kind, w, x, lay):
        mixer_w = {k: v for k, v in w.items() if not k.startswith(("moe", "shared", "norm.post"))}
        moe_w = {k: v for k, v in w.items() if k.startswith(("moe", "shared", "norm.post"))}
        return self.moe(moe_w, kind(mixer_w, x, lay))

    def __call__(self, tokens, lay: Layout, weight, mtp_weight):
        """Losses of packed rows.

        tokens `[b, t]`; weight `[b, t]` is the weight of predicting the next token, mtp_weight that of the
        one after it. Returns a dictionary of tensors.
        """
        c, work = self.c, self.params.work
        layers = layer_weights(c, work)
        embed, head = work["embed"][0], work["head"][0]
        e = F.embedding(tokens, embed).float()
        x, balance, shares = e, 0.0, []
        for i in range(c.num_hidden_layers):
            kind = self.attention if c.is_attention(i) else self.delta
            x, b, s = self.layer(kind, layers[i], x, lay)
            balance, shares = balance + b, shares + [s]
        h = self.norm(x, work["norm.final"][0])
        target = tokens.roll(-1, 1)
        main, losses = self.loss(h.flatten(0, 1), head, target.flatten(), weight.flatten())
        # Multi-token prediction: position n sees h_n and the token n + 1, and predicts n + 2.
        pre = torch.cat([self.norm(e.roll(-1, 1), work["norm.mtp"][0]), self.norm(h, work["norm.mtp"][1])], -1)
        x, b, s = self.layer(self.attention, layers[-1], linear(pre, work["mtp.fc"][0]).float(), lay)
        h2 = self.norm(x, work["norm.mtp"][2])
        mtp, mtp_losses = self.loss(h2.flatten(0, 1), head, tokens.roll(-2, 1).flatten(), mtp_weight.flatten())
        return {
            "main": main,
            "mtp": mtp,
            "balance": balance + b,
            "shares": torch.stack(shares + [s]),
            "losses": losses,
            "mtp_losses": mtp_losses,
        }
