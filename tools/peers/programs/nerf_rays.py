"""A radiance field: rays in chunks, coarse and fine samples, a whole picture without gradients from time to time; a few hundred MB."""
from parts import *

seed(23)


def field():
    return nn.Sequential(nn.Linear(63, 256), nn.ReLU(True), *[m for _ in range(6) for m in (nn.Linear(256, 256), nn.ReLU(True))], nn.Linear(256, 4)).to(DEV)


coarse, fine = field(), field()
opt = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], 5e-4)
freq = 2.0 ** torch.arange(10, device=DEV)


def encode(p):
    a = p[..., None] * freq
    return torch.cat([p, a.sin().flatten(-2), a.cos().flatten(-2)], -1)


def render(net, o, d, z):
    raw = net(encode(o[:, None] + d[:, None] * z[..., None]))
    alpha = 1 - torch.exp(-F.softplus(raw[..., 3]) * 0.05)
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    weight = alpha * through
    return (weight[..., None] * raw[..., :3].sigmoid()).sum(1), weight


def both(o, d):
    z = torch.linspace(2, 6, 64, device=DEV).expand(len(o), 64)
    rgb, w = render(coarse, o, d, z)
    more = 2 + 4 * torch.multinomial(w.detach() + 1e-5, 96, replacement=True).float().div(64)
    z = torch.cat([z, more], 1).sort(1).values
    return rgb, render(fine, o, d, z)[0]


for i in steps(200):
    n = 1024
    a, b = both(torch.randn(n, 3, device=DEV), F.normalize(torch.randn(n, 3, device=DEV), dim=1))
    want = torch.rand(n, 3, device=DEV)
    loss = F.mse_loss(a, want) + F.mse_loss(b, want)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 60 == 59:
        with torch.no_grad():
            o = torch.randn(200 * 200, 3, device=DEV)
            torch.cat([both(c, c)[1] for c in o.split(3000)]).view(200, 200, 3).cpu()
