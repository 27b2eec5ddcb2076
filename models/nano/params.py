"""Parameters, kept by kind: all matrices of one kind are one tensor with the layer first.

Three flat buffers hold the master weights in f32: `q4` (stored with 4 bits), `q8` (8 bits: routers and
gates of the shared expert) and `small` (norms, convolution, decay: never quantised). Kinds are
views of them, so that rounding to 4 bits and the optimiser run over whole buffers.
"""

import math

import torch

from config import Config, GROUP


def kinds(c: Config):
    """`{name: (buffer, shape, init)}`; shape begins with the number of layers that have the kind.

    The multi-token prediction layer is the last of the attention layers, norms and experts.
    """
    h, inner, e = c.hidden_size, c.moe_intermediate_size, c.num_experts
    nd, na, n = len(c.delta_layers), len(c.attention_layers) + 1, c.num_hidden_layers + 1
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    vh = c.linear_num_value_heads
    std = 1 / math.sqrt(h)
    out = 1 / math.sqrt(2 * n)  # output projections start small
    return {
        "embed": ("q4", (1, c.vocab_size, h), 0.3),
        "head": ("q4", (1, c.vocab_size, h), 0.5 * std),
        "gdn.qkv": ("q4", (nd, c.conv_dim, h), std),
        "gdn.z": ("q4", (nd, c.value_dim, h), std),
        "gdn.b": ("q4", (nd, vh, h), std),
        "gdn.a": ("q4", (nd, vh, h), std),
        "gdn.out": ("q4", (nd, h, c.value_dim), out / math.sqrt(c.value_dim)),
        "attn.q": ("q4", (na, 2 * q, h), std),
        "attn.k": ("q4", (na, kv, h), std),
        "attn.v": ("q4", (na, kv, h), std),
        "attn.o": ("q4", (na, h, q), out / math.sqrt(q)),
        "moe.gate": ("q4", (n, e, inner, h), std),
        "moe.up": ("q4", (n, e, inner, h), std),
        "moe.down": ("q4", (n, e, h, inner), out / math.sqrt(inner)),
        "shared.gate": ("q4", (n, inner, h), std),
        "shared.up": ("q4", (n, inner, h), std),
        "shared.down": ("q4", (n, h, inner), out / math.sqrt(inner)),
        "mtp.fc": ("q4", (1, h, 2 * h), 1 / math.sqrt(2 * h)),
        "moe.router": ("q8", (n, e, h), std),
        "shared.switch": ("q8", (n, 1, h), std),
        "norm.in": ("small", (n, h), "one"),
        "norm.post": ("small", (n, h), "one"),
        "norm.final": ("small", (1, h), "one"),
        "norm.mtp": ("small", (3, h), "one"),  # embedding, hidden, final
        "gdn.conv": ("small", (nd, c.conv_dim, c.linear_conv_kernel_dim), "conv"),
        "gdn.A_log": ("small", (nd, vh), "A_log"),
        "gdn.dt_bias": ("small", (nd, vh), "dt_bias"),
        "gdn.norm": ("small", (nd, c.linear_value_head_dim), "one"),
        "attn.q_norm": ("small", (na, c.head_dim), "one"),
        "attn.k_norm": ("small", (na, c.head_dim), "one"),
    }


def _initial(shape, init, generator):
    if isinstance(init, float):
        return torch.randn(shape, generator=generator) * init
    if init == "one":
        return torch.ones(shape)
    if init == "conv":  # the current token passes, its neighbours a little
        w = torch.randn(shape, generator=generator) * 0.1
        w[..., -1] += 1.0
        return w
    u = torch.rand(shape, generator=generator)
    if init == "A_log":  # decay rates 0.5 .. 8
        return torch.log(0.5 * 16**u)
    if init == "dt_bias":  # softplus gives steps 0.001 .. 0.1
        dt = 0.001 * 100**u
        return dt + torch.log(-torch.expm1(-dt))
    raise ValueError(init)


class Params:
    """Master weights (f32, flat) and the working copies that the model runs with."""

    def __init__(self, config: Config, device, seed=1):
        self.config, self.kinds = config, kinds(config)
        generator = torch.Generator().manual_seed(seed)
        sizes = {"q4": 0, "q8": 0, "small": 0}
        place = {}
        for name, (buffer, shape, _) in self.kinds.items():
            place[name] = (buffer, sizes[buffer], shape)
            sizes[buffer] += math.prod(shape)
        self.flat = {b: torch.zeros(n, device=device) for b, n in sizes.items()}
        self.place = place
        self.master = {n: self.view(self.flat, n) for n in place}
        for name, (_, shape, init) in self.kinds.items():
            self.master[name].copy_(_initial(shape, init, generator))
        matrix = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.work_flat = {
            b: torch.zeros(n, device=device, dtype=matrix if b != "small" else torch.float32) for b, n in sizes.items()
        }
        self.work = {n: self.view(self.work_flat, n).requires_grad_() for n in place}

    def view(self, flat, name):
        """The kind `name` inside a set of flat buffers."""
        buffer, start, shape = self.place[name]
        return flat[buffer][start : start + math.prod(shape)].view(shape)

    @torch.no_grad()
    def refresh(self, quantise):
        """Working copies from the master weights, through `quantise(flat, bits)` if it is given."""
        for buffer, flat in self.flat.items():
            bits = {"q4": 4, "q8": 8}.get(buffer)
            self.work_flat[buffer].copy_(quantise(flat, bits) if quantise and bits else flat)

    def count(self):
        return sum(f.numel() for f in self.flat.values())


def check_groups(config: Config):
    """Every quantised matrix must consist of whole groups."""
    for name, (buffer, shape, _) in kinds(config).items():
        assert buffer == "small" or shape[-1] % GROUP == 0, (name, shape)
