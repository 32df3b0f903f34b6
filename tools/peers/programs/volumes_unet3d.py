"""Medical volumes: a 3-D U-Net on crops of 96 to 144, then whole volumes by overlapping windows."""
from parts import *

seed(28)
conv = lambda a, b: nn.Sequential(nn.Conv3d(a, b, 3, 1, 1), nn.InstanceNorm3d(b), nn.LeakyReLU(0.01), nn.Conv3d(b, b, 3, 1, 1), nn.InstanceNorm3d(b), nn.LeakyReLU(0.01))


class UNet(nn.Module):
    def __init__(self, w=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList(conv(a, b) for a, b in zip((1, *w), w))
        self.grow = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(w, w[1:]))
        self.up = nn.ModuleList(conv(2 * a, a) for a in w[:-1])
        self.last = nn.Conv3d(w[0], 4, 1)

    def forward(self, x):
        skips = []
        for i, d in enumerate(self.down):
            x = d(x if i == 0 else F.max_pool3d(x, 2))
            skips.append(x)
        for i in (2, 1, 0):
            x = self.up[i](torch.cat([self.grow[i](x), skips[i]], 1))
        return self.last(x)


net = UNet().to(DEV)
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.99, nesterov=True)
for era in steps(4, 10):
    for i in range(6):
        s = [random.choice([96, 112, 128, 144]) for _ in range(3)]
        x, y = torch.randn(2, 1, *s, device=DEV), torch.randint(0, 4, (2, *s), device=DEV)
        with torch.autocast("cuda", torch.float16):
            z = net(x)
            p = z.float().softmax(1)
            hot = F.one_hot(y, 4).permute(0, 4, 1, 2, 3)
            loss = F.cross_entropy(z.float(), y) + 1 - (2 * (p * hot).sum((2, 3, 4)) / (p + hot).sum((2, 3, 4))).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        d = [random.randint(130, 260) for _ in range(3)]
        vol, out, count = torch.randn(1, 1, *d, device=DEV), torch.zeros(1, 4, *d, device=DEV), torch.zeros(1, 1, *d, device=DEV)
        for a in range(0, d[0] - 95, 64):
            for b in range(0, d[1] - 95, 64):
                for c in range(0, d[2] - 95, 64):
                    at = (slice(None), slice(None), slice(a, a + 96), slice(b, b + 96), slice(c, c + 96))
                    out[at] += net(vol[at])
                    count[at] += 1
        (out / count.clamp(min=1)).argmax(1).cpu()
