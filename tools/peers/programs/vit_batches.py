"""A ViT-B on images of 224, batches of 8 to 48 that differ from step to step, mixed precision, AdamW, an evaluation now and then."""
from parts import *

seed(1)


class ViT(nn.Module):
    def __init__(self, d=768, layers=12):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 16, 16)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, 197, d))
        self.blocks = nn.Sequential(*[Block(d, 12) for _ in range(layers)])
        self.head = nn.Linear(d, 1000)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.blocks(x)[:, 0])


model = ViT().to(DEV)
opt = torch.optim.AdamW(model.parameters(), 3e-4)
scaler = torch.amp.GradScaler("cuda")
for i in steps(60):
    n = random.choice([8, 16, 24, 32, 40, 48])
    x, y = torch.randn(n, 3, 224, 224, device=DEV), torch.randint(0, 1000, (n,), device=DEV)
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if i % 10 == 9:
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            for _ in range(3):
                model(torch.randn(64, 3, 224, 224, device=DEV)).argmax(1).sum().item()
        model.train()
