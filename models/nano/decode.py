"""Greedy generation in batches, for the evaluation: prompts are read in chunks, then token by token."""

import torch
import torch.nn.functional as F

from delta import CHUNK, delta_chunked, delta_step
from model import (
    attention_inputs,
    attention_output,
    delta_gates,
    delta_heads,
    delta_inputs,
    delta_output,
    layer_weights,
    layout,
    linear,
    moe_layer,
    rms,
)


def pad(rows, fill):
    """(ids `[b, t]` int64 padded on the right to whole chunks, lengths `[b]`)."""
    length = -(-max(map(len, rows)) // CHUNK) * CHUNK
    return (torch.tensor([list(r) + [fill] * (length - len(r)) for r in rows]), torch.tensor([len(r) for r in rows]))


class Decoder:
    """States of a batch of sequences."""

    def __init__(self, params):
        self.p, self.c = params, params.config
        self.weights = layer_weights(params.config, params.work)

    def head(self, x):
        c, work = self.c, self.p.work
        return linear(rms(x, work["norm.final"][0], c.rms_norm_eps), work["head"][0]).float()

    @torch.no_grad()
    def prefill(self, ids, lengths, room):
        """Reads the prompts; returns the logits `[b, vocab]` behind each."""
        c, (b, t) = self.c, ids.shape
        position = torch.arange(t, device=ids.device).expand(b, t)
        real = (position < lengths[:, None])[..., None]
        lay = layout(c, position, None, 0)
        x = F.embedding(ids, self.p.work["embed"][0]).float()
        self.states, self.lengths = [], lengths.clone()
        for i in range(c.num_hidden_layers):
            w = self.weights[i]
            n = rms(x, w["norm.in"], c.rms_norm_eps)
            if c.is_attention(i):
                q, gate, k, v = attention_inputs(c, w, n, lay.cos, lay.sin)
                o = F.scaled_dot_product_attention(
                    q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
                ).transpose(1, 2)
                x = x + attention_output(c, w, o, gate).float()
                self.states.append([F.pad(a, (0, 0, 0, 0, 0, room)) for a in (k, v)])
            else:
                q, k, v, decay, beta, z, qkv = delta_inputs(c, w, n, lay.reach)
                o, state = delta_chunked(q, k, v, decay * real, beta * real)
                x = x + delta_output(c, w, o, z).float()
                taps = c.linear_conv_kernel_dim - 1
                at = lengths[:, None] - taps + torch.arange(taps, device=ids.device)
                last = qkv.gather(1, at.clamp_min(0)[..., None].expand(-1, -1, qkv.shape[-1]))
                self.states.append([last * (at >= 0)[..., None], state])
            x = moe_layer(c, w, x)[0]
        return self.head(x.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, x.shape[-1]))[:, 0])

    @torch.no_grad()
    def step(self, ids):
        """Reads one more token of each sequence, `[b]`; returns logits `[b, vocab]`."""
        c, b = self.c, len(ids)
        position = self.lengths[:, None]
        lay = layout(c, position, None, 0)
        every = torch.arange(b, device=ids.device)
        x = F.embedding(ids[:, None], self.p.work["embed"][0]).float()
        for i, (w, state) in enumerate(zip(self.weights, self.states)):
            n = rms(x, w["norm.in"], c.rms_norm_eps)
            if c.is_attention(i):
                q, gate, k, v = attention_inputs(c, w, n, lay.cos, lay.sin)
                keys, values = state
                keys[every, self.lengths], values[every, self.lengths] = k[:, 0], v[:, 0]
                seen = torch.arange(keys.shape[1], device=ids.device) <= position
                o = F.scaled_dot_product_attention(
                    q.transpose(1, 2),
                    keys.transpose(1, 2),
                    values.transpose(1, 2),
                    attn_mask=seen[:, None, None],
                    enable_gqa=True,
                ).transpose(1, 2)
                x = x + attention_output(c, w, o, gate).float()
            else:
                rows = torch.cat([state[0], linear(n, w["gdn.qkv"])], 1)
                y = F.silu((rows.float() * w["gdn.conv"].mT).sum(1, keepdim=True))
                (q, k, v), (decay, beta, z) = delta_heads(c, y), delta_gates(c, w, n)
                o, state[1] = delta_step(q[:, 0], k[:, 0], v[:, 0], decay[:, 0], beta[:, 0], state[1])
                state[0] = rows[:, 1:]
                x = x + delta_output(c, w, o[:, None], z).float()
            x = moe_layer(c, w, x)[0]
        self.lengths = self.lengths + 1
        return self.head(x[:, 0])

    @torch.no_grad()
    def generate(self, prompts, fill, stops, most):
        """Greedy continuations of lists of ids, without the stop token."""
        device = self.p.flat["small"].device
        ids, lengths = (a.to(device) for a in pad(prompts, fill))
        logits = self.prefill(ids, lengths, most + 1)
        stop = torch.tensor(stops, device=device)
        out, done = [], torch.zeros(len(prompts), dtype=torch.bool, device=device)
        for i in range(most):
            token = logits.argmax(-1)
            done |= torch.isin(token, stop)
            out.append(torch.where(done, -1, token))
            if i % 16 == 15 and bool(done.all()):
                break
            logits = self.step(token)
        rows = torch.stack(out, 1).tolist()
        return [[t for t in r if t >= 0] for r in rows]
