"""Point clouds of 500 to 4,000 points: distances of all pairs, neighbours, edge features (DGCNN)."""
from parts import *

seed(20)
mlps = nn.ModuleList(nn.Sequential(nn.Conv2d(2 * a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)) for a, b in ((3, 64), (64, 64), (64, 128), (128, 256))).to(DEV)
head = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 40)).to(DEV)
opt = torch.optim.Adam([*mlps.parameters(), *head.parameters()], 1e-3)
for i in steps(70):
    n, p = 8, random.randint(500, 4000)
    x, feats = torch.randn(n, 3, p, device=DEV), []
    for mlp in mlps:
        xx = (x * x).sum(1, keepdim=True)
        dist = 2 * x.transpose(1, 2) @ x - xx - xx.transpose(1, 2)
        at = dist.topk(20, -1).indices
        near = x.transpose(1, 2).flatten(0, 1)[(at + torch.arange(n, device=DEV)[:, None, None] * p).flatten()].view(n, p, 20, -1)
        mid = x.transpose(1, 2)[:, :, None].expand_as(near)
        x = mlp(torch.cat([near - mid, mid], -1).permute(0, 3, 1, 2)).max(-1).values
        feats.append(x)
    loss = F.cross_entropy(head(torch.cat(feats, 1).max(-1).values), torch.randint(0, 40, (n,), device=DEV))
    opt.zero_grad()
    loss.backward()
    opt.step()
