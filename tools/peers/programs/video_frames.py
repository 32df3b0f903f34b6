"""Video: clips of 8 to 32 frames, 2+1-D convolutions and attention over time, a teacher without gradients beside the student."""
from parts import *

seed(30)


class Net(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.space = nn.ModuleList(nn.Conv3d(a, b, (1, 3, 3), (1, 2, 2), (0, 1, 1)) for a, b in ((3, w), (w, 2 * w), (2 * w, 4 * w), (4 * w, 8 * w)))
        self.time = nn.ModuleList(nn.Conv3d(b, b, (3, 1, 1), 1, (1, 0, 0)) for b in (w, 2 * w, 4 * w, 8 * w))
        self.norm = nn.ModuleList(nn.BatchNorm3d(b) for b in (w, 2 * w, 4 * w, 8 * w))
        self.block, self.head = Block(8 * w, 8), nn.Linear(8 * w, 400)

    def forward(self, x):
        for s, t, n in zip(self.space, self.time, self.norm):
            x = F.relu(n(t(F.relu(s(x)))))
        return self.head(self.block(x.mean((3, 4)).transpose(1, 2)).mean(1))


student, teacher = Net(48).to(DEV), Net(96).to(DEV).eval()
opt = torch.optim.AdamW(student.parameters(), 1e-4)
for i in steps(40, 9):
    n, t, s = random.choice([(8, 16), (4, 32), (16, 8)]) + (random.choice([160, 192, 224]),)
    x = torch.randn(n, 3, t, s, s, device=DEV)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        want = teacher(x).float().softmax(-1)
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.kl_div(student(x).float().log_softmax(-1), want, reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    opt.step()
