"""A Swin-like net: windows, shifts and merged patches, sizes of images that differ; fp32, SGD."""
from parts import *

seed(2)


class Stage(nn.Module):
    def __init__(self, d, depth, heads, win=7):
        super().__init__()
        self.blocks, self.win = nn.ModuleList(Block(d, heads, plain=True) for _ in range(depth)), win
        self.merge = nn.Linear(4 * d, 2 * d)

    def forward(self, x):
        b, h, w, d = x.shape
        s = self.win
        for i, blk in enumerate(self.blocks):
            ph, pw = -h % s, -w % s
            y = F.pad(x, (0, 0, 0, pw, 0, ph))
            if i % 2:
                y = torch.roll(y, (-(s // 2), -(s // 2)), (1, 2))
            hh, ww = y.shape[1:3]
            y = y.view(b, hh // s, s, ww // s, s, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, d)
            y = blk(y)
            y = y.view(b, hh // s, ww // s, s, s, d).permute(0, 1, 3, 2, 4, 5).reshape(b, hh, ww, d)
            if i % 2:
                y = torch.roll(y, (s // 2, s // 2), (1, 2))
            x = y[:, :h, :w]
        x = F.pad(x, (0, 0, 0, w % 2, 0, h % 2))
        return self.merge(torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1))


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 96, 4, 4)
        self.stages = nn.Sequential(Stage(96, 2, 3), Stage(192, 2, 6), Stage(384, 6, 12))
        self.head = nn.Linear(768, 100)

    def forward(self, x):
        return self.head(self.stages(self.patch(x).permute(0, 2, 3, 1)).mean((1, 2)))


model = Swin().to(DEV)
opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
for i in steps(50):
    side = random.choice([160, 192, 224, 256, 288])
    x, y = torch.randn(16, 3, side, side, device=DEV), torch.randint(0, 100, (16,), device=DEV)
    opt.zero_grad(set_to_none=i % 2 == 0)
    F.cross_entropy(model(x), y).backward()
    opt.step()
