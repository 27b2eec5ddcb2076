"""The forward pass in plain numpy: the arbiter of the golden data."""

import numpy as np

F32, F64 = np.float32, np.float64
CHUNK = 64


def round_bf16(x):
    u = np.ascontiguousarray(x, F32).view(np.uint32)
    u = u + 0x7FFF + ((u >> 16) & 1)
    return (u & np.uint32(0xFFFF0000)).view(F32)


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def delta_recurrent(q, k, v, decay, beta, S):
    """q,k [T,Hv,Dk]; v [T,Hv,Dv]; decay,beta [T,Hv]; S [Hv,Dv,Dk] (updated copy returned)."""
    S = S.copy()
    out = np.empty_like(v)
    for t in range(len(q)):
        S *= decay[t][:, None, None]
        seen = np.einsum("hvk,hk->hv", S, k[t])
        d = (v[t] - seen) * beta[t][:, None]
        S += d[:, :, None] * k[t][:, None, :]
        out[t] = np.einsum("hvk,hk->hv", S, q[t])
    return out, S


def delta_chunked(q, k, v, log_decay, beta, S, C=CHUNK):
    """The same result, C tokens at a time, by a triangular solve per chunk."""
    T, Hv, Dk = q.shape
    out = np.empty_like(v)
    S = S.copy()
    for t0 in range(0, T, C):
        sl = slice(t0, min(t0 + C, T))
        n = sl.stop - t0
        for h in range(Hv):
            Q, K, V, b = q[sl, h], k[sl, h], v[sl, h], beta[sl, h]
            G = np.cumsum(log_decay[sl, h])
            D = np.tril(np.exp(np.minimum(G[:, None] - G[None, :], 0)))
            A = np.tril((b[:, None] * (K @ K.T)) * D, -1)
            rhs = np.concatenate([b[:, None] * V, (b * np.exp(G))[:, None] * K], 1)
            X = np.linalg.solve(np.eye(n, dtype=q.dtype) + A, rhs)
            U, W = X[:, :V.shape[1]], X[:, V.shape[1]:]
            R = U - W @ S[h].T
            out[sl, h] = np.exp(G)[:, None] * (Q @ S[h].T) + ((Q @ K.T) * D) @ R
            S[h] = np.exp(G[-1]) * S[h] + (R * np.exp(G[-1] - G)[:, None]).T @ K
    return out, S


class Spec:
    """The model over dense weights with MLX names. dtype = arithmetic; emu = round to bfloat16
    wherever MLX on Metal stores bfloat16; chunked = Gated DeltaNet by chunks instead of by token."""

    def __init__(self, cfg, dense, dtype=F64, emu=False, chunked=True):
        self.c, self.dt, self.emu, self.chunked = cfg, dtype, emu, chunked
        self.w = {k.removeprefix("language_model."): a.astype(dtype) for k, a in dense.items()}
        self.trace = None

    def r(self, x):
        return round_bf16(x) if self.emu else x

    def lin(self, x, name):
        return self.r(x @ self.w[name + ".weight"].T)

    def rms(self, x, weight, eps=None):
        eps = self.c["rms_norm_eps"] if eps is None else eps
        n = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.dt(eps))
        return n if weight is None else self.r(self.r(n) * self.w[weight])

    def keep(self, name, x):
        if self.trace is not None:
            self.trace[name] = np.asarray(x, np.int32 if x.dtype.kind == "i" else F32)
        return x

    def fresh_state(self):
        return [None] * self.c["num_hidden_layers"]

    def gdn(self, x, b, st, tag):
        c, w, r = self.c, self.w, self.r
        T = len(x)
        nk, nv = c["linear_num_key_heads"], c["linear_num_value_heads"]
        dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
        width = c["linear_conv_kernel_dim"]
        if st is None:
            st = (np.zeros((width - 1, 2 * nk * dk + nv * dv), self.dt), np.zeros((nv, dv, dk), self.dt))
        a = b + "linear_attn."
        qkv = self.keep(tag + "qkv", self.lin(x, a + "in_proj_qkv"))
        z = self.keep(tag + "z", self.lin(x, a + "in_proj_z")).reshape(T, nv, dv)
        bb = self.lin(x, a + "in_proj_b")
        aa = self.lin(x, a + "in_proj_a")
        xin = np.concatenate([st[0], qkv])
        ker = w[a + "conv1d.weight"][:, :, 0]
        y = r(sum(xin[j:j + T] * ker[:, j] for j in range(width)))
        y = self.keep(tag + "conv", r(y * r(sigmoid(y))))
        q = y[:, :nk * dk].reshape(T, nk, dk)
        k = y[:, nk * dk:2 * nk * dk].reshape(T, nk, dk)
        v = y[:, 2 * nk * dk:].reshape(T, nv, dv)
        # l2 norm with eps 1e-6 on the *sum* of squares; q also carries 1/sqrt(dk)
        q = r(r(self.rms(q, None, 1e-6 / dk)) * self.dt(1 / dk))
        k = r(r(self.rms(k, None, 1e-6 / dk)) * self.dt(dk ** -0.5))
        self.keep(tag + "q", q)
        self.keep(tag + "k", k)
        beta = self.keep(tag + "beta", r(sigmoid(bb)))
        logg = -np.exp(w[a + "A_log"]) * r(softplus(r(aa + w[a + "dt_bias"])))
        self.keep(tag + "log_decay", logg)
        q, k = np.repeat(q, nv // nk, 1), np.repeat(k, nv // nk, 1)
        if self.chunked and T > 1 and not self.emu:
            o, S = delta_chunked(q, k, v, logg, beta, st[1])
        else:
            o, S = delta_recurrent(q, k, v, np.exp(logg), beta, st[1])
        o = self.keep(tag + "core", r(o))
        o = self.rms(o, a + "norm.weight")
        o = self.keep(tag + "gated", r(o * z * sigmoid(z)).reshape(T, -1))
        return self.lin(o, a + "out_proj"), (xin[1 - width:], S)

    def attn(self, x, b, st, tag):
        c, r = self.c, self.r
        T = len(x)
        nq, nkv, hd = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        a = b + "self_attn."
        pos0 = 0 if st is None else st[0].shape[0]
        qg = self.lin(x, a + "q_proj").reshape(T, nq, 2, hd)
        q, gate = qg[:, :, 0], qg[:, :, 1]
        k = self.lin(x, a + "k_proj").reshape(T, nkv, hd)
        v = self.lin(x, a + "v_proj").reshape(T, nkv, hd)
        q, k = self.rms(q, a + "q_norm.weight"), self.rms(k, a + "k_norm.weight")
        rope_cfg = c["rope_parameters"]
        rd = int(hd * rope_cfg["partial_rotary_factor"])
        theta = float(rope_cfg["rope_theta"])
        ang = (pos0 + np.arange(T))[:, None] * theta ** (-np.arange(0, rd, 2) / rd)
        cos, sin = (f(ang).astype(self.dt)[:, None, :] for f in (np.cos, np.sin))

        def rope(t):
            lo, hi = t[..., :rd // 2], t[..., rd // 2:rd]
            return np.concatenate([r(lo * cos - hi * sin), r(hi * cos + lo * sin), t[..., rd:]], -1)

        q, k = self.keep(tag + "q", rope(q)), self.keep(tag + "k", rope(k))
        self.keep(tag + "v", v)
        if st is not None:
            k, v = np.concatenate([st[0], k]), np.concatenate([st[1], v])
        o = np.empty((T, nq, hd), self.dt)
        mask = np.arange(len(k))[None, :] > (pos0 + np.arange(T))[:, None]
        for h in range(nq):
            s = (q[:, h] @ k[:, h // (nq // nkv)].T) * self.dt(hd ** -0.5)
            s = np.where(mask, -np.inf, s)
            e = np.exp(s - s.max(-1, keepdims=True))
            o[:, h] = (e / e.sum(-1, keepdims=True)) @ v[:, h // (nq // nkv)]
        o = self.keep(tag + "core", r(o))
        o = self.keep(tag + "gated", r(o * r(sigmoid(gate))).reshape(T, -1))
        return self.lin(o, a + "o_proj"), (k, v)

    def moe(self, x, b, tag):
        c, w, r = self.c, self.w, self.r
        K = c["num_experts_per_tok"]
        m = b + "mlp."
        logits = self.lin(x, m + "gate")
        e = np.exp(logits - logits.max(-1, keepdims=True))
        prob = self.keep(tag + "router_prob", r(e / e.sum(-1, keepdims=True)))
        order = np.argsort(-prob, -1, kind="stable")
        idx = self.keep(tag + "expert_ids", order[:, :K])
        srt = np.take_along_axis(logits, order, -1)
        self.router_gap.append((srt[:, K - 1] - srt[:, K]).min())
        self.expert_sets.append(np.sort(idx, -1))
        wt = np.take_along_axis(prob, idx, -1)
        wt = self.keep(tag + "expert_weights", r(wt / r(wt.sum(-1, keepdims=True))))
        y = np.zeros_like(x)
        for t in range(len(x)):
            for j, ex in enumerate(idx[t]):
                g = r(w[m + "switch_mlp.gate_proj.weight"][ex] @ x[t])
                u = r(w[m + "switch_mlp.up_proj.weight"][ex] @ x[t])
                h = r(r(g * r(sigmoid(g))) * u)
                d = r(w[m + "switch_mlp.down_proj.weight"][ex] @ h)
                y[t] += r(d * wt[t, j])
        y = r(y)
        g, u = self.lin(x, m + "shared_expert.gate_proj"), self.lin(x, m + "shared_expert.up_proj")
        s = self.lin(r(r(g * r(sigmoid(g))) * u), m + "shared_expert.down_proj")
        s = r(s * r(sigmoid(self.lin(x, m + "shared_expert_gate"))))
        return r(y + s)

    def layer(self, i, x, state):
        r = self.r
        b, tag = f"model.layers.{i}.", f"layers.{i}."
        mix = self.attn if self.c["layer_types"][i] == "full_attention" else self.gdn
        y, state[i] = mix(self.rms(x, b + "input_layernorm.weight"), b, state[i], tag)
        x = r(x + self.keep(tag + "mixer_out", y))
        y = self.moe(self.rms(x, b + "post_attention_layernorm.weight"), b, tag)
        return r(x + self.keep(tag + "moe_out", y))

    def __call__(self, ids, state=None, hidden=None):
        """ids [T] -> logits [T,V]; state is updated in place."""
        c, r = self.c, self.r
        state = self.fresh_state() if state is None else state
        self.router_gap, self.expert_sets = [], []
        x = r(self.w["model.embed_tokens.weight"][np.asarray(ids)])
        if hidden is not None:
            hidden.append(x)
        for i in range(c["num_hidden_layers"]):
            x = self.layer(i, x, state)
            if hidden is not None:
                hidden.append(x)
        n = self.rms(x, "model.norm.weight")
        if hidden is not None:
            hidden.append(n)
        return self.lin(n, "lm_head")

    def greedy(self, ids, count):
        state = self.fresh_state()
        lg = self(ids, state)[-1]
        out, gaps, rgap = [], [], min(self.router_gap)
        for _ in range(count):
            top = np.sort(lg)[-2:]
            gaps.append(float(top[1] - top[0]))
            out.append(int(lg.argmax()))
            lg = self([out[-1]], state)[-1]
            rgap = min(rgap, min(self.router_gap))
        return out, gaps, float(rgap)
