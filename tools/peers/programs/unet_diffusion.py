"""Diffusion: a U-Net with attention trained on 64 x 64 with an EMA copy, then samples in other numbers, and again."""
import copy

from parts import *

seed(3)


class Res(nn.Module):
    def __init__(self, a, b, t=256):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, a), nn.Conv2d(a, b, 3, 1, 1)
        self.n2, self.c2 = nn.GroupNorm(8, b), nn.Conv2d(b, b, 3, 1, 1)
        self.emb, self.skip = nn.Linear(t, b), nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.emb(t)[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class UNet(nn.Module):
    def __init__(self, w=(64, 128, 256, 256)):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.first = nn.Conv2d(3, w[0], 3, 1, 1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        c = w[0]
        for k in w:
            self.down.append(nn.ModuleList([Res(c, k), Res(k, k)]))
            c = k
        self.mid, self.attn = Res(c, c), Attention(c, 4)
        for k in reversed(w):
            self.up.append(nn.ModuleList([Res(c + k, k), Res(k, k)]))
            c = k
        self.last = nn.Conv2d(c, 3, 3, 1, 1)

    def forward(self, x, t):
        f = torch.exp(torch.arange(32, device=x.device) * -0.3)
        t = self.time(torch.cat([(t[:, None] * f).sin(), (t[:, None] * f).cos()], -1))
        h, skips = self.first(x), []
        for a, b in self.down:
            h = b(a(h, t), t)
            skips.append(h)
            h = F.avg_pool2d(h, 2)
        h = self.mid(h, t)
        n, c, y, z = h.shape
        h = h + self.attn(h.flatten(2).transpose(1, 2)).transpose(1, 2).view(n, c, y, z)
        for a, b in self.up:
            h = F.interpolate(h, scale_factor=2)
            h = b(a(torch.cat([h, skips.pop()], 1), t), t)
        return self.last(h)


model = UNet().to(DEV)
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), 1e-4)
for era in steps(4, 9):
    for i in range(20):
        n = 32
        x, t = torch.randn(n, 3, 64, 64, device=DEV), torch.rand(n, device=DEV)
        noise = torch.randn_like(x)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(model(x * (1 - t)[:, None, None, None] + noise * t[:, None, None, None], t), noise)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), ema.parameters()):
                q.lerp_(p, 0.01)
    with torch.no_grad():
        for n in (4, 16, 24):
            x = torch.randn(n, 3, 64, 64, device=DEV)
            for k in range(12):
                t = torch.full((n,), 1 - k / 12, device=DEV)
                e = ema(torch.cat([x, x]), torch.cat([t, t]))  # with and without a condition
                e0, e1 = e.chunk(2)
                x = x - (e0 + 3 * (e1 - e0)) / 12
            x.clamp(-1, 1).cpu()
