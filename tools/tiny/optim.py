"""Muon for the matrices inside the layers, AdamW for everything else."""

import torch


def orthogonalise(g, steps=5):
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrix, for a batch of matrices."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=2e-3, momentum=0.95, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for shape, ps in shapes.items():
                updates = []
                for p in ps:
                    m = self.state[p].setdefault("m", torch.zeros_like(p))
                    m.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(m, group["momentum"]))
                o = orthogonalise(torch.stack(updates)) * (0.2 * max(shape) ** 0.5)
                for p, u in zip(ps, o):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u, alpha=-group["lr"])


class Both:
    """One learning rate schedule over the two optimisers."""

    def __init__(self, named, lr, weight_decay=0.01, muon=True):
        named = [(n, p) for n, p in named if p.requires_grad]
        inner = [p for n, p in named if muon and p.ndim == 2 and ".layers." in n]
        outer = [p for n, p in named if not any(p is q for q in inner)]
        self.lr, self.params = lr, [p for _, p in named]
        self.parts = [torch.optim.AdamW(outer, lr=lr, betas=(0.9, 0.98), weight_decay=weight_decay, fused=True)]
        if inner:
            self.parts.append(Muon(inner, lr=lr, weight_decay=weight_decay))

    def step(self, scale, clip=1.0):
        torch.nn.utils.clip_grad_norm_(self.params, clip)
        for part in self.parts:
            for g in part.param_groups:
                g["lr"] = self.lr * scale
            part.step()
            part.zero_grad(set_to_none=True)
