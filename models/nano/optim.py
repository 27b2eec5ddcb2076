"""Muon for the matrices inside layers, AdamW for the rest."""

import torch

NOT_MUON = {"embed", "head", "gdn.a", "gdn.b", "moe.router", "shared.switch"}


def orthogonalise(g, steps=5):
    """Nearest orthogonal matrices of g `[n, rows, cols]`, by Newton-Schulz in bfloat16."""
    x = g.bfloat16() if g.is_cuda else g
    turned = x.shape[-2] > x.shape[-1]
    if turned:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        b = -4.7750 * a + 2.0315 * (a @ a)
        x = 3.4445 * x + b @ x
    return (x.mT if turned else x).float()


class Optimiser:
    """Updates the master weights of `params` from the gradients of its working copies."""

    def __init__(self, params, decay=0.1):
        self.p, self.decay, self.t = params, decay, 0
        self.muon = [n for n in params.place if params.place[n][0] == "q4" and n not in NOT_MUON]
        self.adam = [n for n in params.place if n not in self.muon]
        self.momentum = {n: torch.zeros_like(params.master[n]) for n in self.muon}
        self.first = {n: torch.zeros_like(params.master[n]) for n in self.adam}
        self.second = {n: torch.zeros_like(params.master[n]) for n in self.adam}

    def state(self):
        """What `restore` needs."""
        return {"t": self.t, "momentum": self.momentum, "first": self.first, "second": self.second}

    def restore(self, state):
        self.t = state["t"]
        self.momentum, self.first, self.second = state["momentum"], state["first"], state["second"]

    @torch.no_grad()
    def step(self, rate, clip=1.0):
        """One step; returns the norm of the gradient before clipping."""
        self.t += 1
        work, master = self.p.work, self.p.master
        norms = torch._foreach_norm([work[n].grad for n in work])
        norm = torch.stack([x.float() for x in norms]).norm()
        scale = (clip / (norm + 1e-6)).clamp(max=1.0)
        scale = torch.where(torch.isfinite(norm), scale, 0.0)
        grads = {n: torch.nan_to_num(work[n].grad.float()) * scale for n in work}
        for n in self.muon:
            m, g = self.momentum[n], grads[n]
            m.lerp_(g, 0.05)
            update = g.lerp(m, 0.95)  # Nesterov
            shape = update.shape
            flat = update.reshape(-1, *shape[-2:])
            # A root mean square of 0.2 per element, as AdamW's: one rate serves both.
            size = 0.2 * max(shape[-2:]) ** 0.5
            o = orthogonalise(flat).reshape(shape)
            master[n].mul_(1 - rate * self.decay).sub_(o, alpha=rate * size)
        c1, c2 = 1 - 0.9**self.t, 1 - 0.98**self.t
        for n in self.adam:
            a, b, g = self.first[n], self.second[n], grads[n]
            a.lerp_(g, 0.1)
            b.lerp_(g * g, 0.02)
            if self.p.place[n][0] != "small":
                master[n].mul_(1 - rate * self.decay)
            master[n].sub_((a / c1) / ((b / c2).sqrt() + 1e-10), alpha=rate)
        for n in work:
            work[n].grad = None
        return norm
