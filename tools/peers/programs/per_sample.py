"""Private training: a gradient for each row by vmap, clipped and summed, noise; batches that differ (Poisson sampling)."""
from torch.func import functional_call, grad, vmap

from parts import *

seed(26)
net = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.GroupNorm(8, 32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.GroupNorm(8, 64), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEV)
params = {k: v.detach() for k, v in net.named_parameters()}


def loss(p, x, y):
    return F.cross_entropy(functional_call(net, p, (x[None],)), y[None])


each = vmap(grad(loss), (None, 0, 0))
for i in steps(60):
    n = random.randint(60, 340)
    g = each(params, torch.randn(n, 3, 32, 32, device=DEV), torch.randint(0, 10, (n,), device=DEV))
    norm = torch.stack([v.flatten(1).norm(dim=1) for v in g.values()]).norm(dim=0)
    scale = (1 / norm).clamp(max=1)
    params = {k: p - 0.1 / n * (torch.einsum("n...,n->...", g[k], scale) + torch.randn_like(p)) for k, p in params.items()}
