"""A recommender: eleven embedding tables of 1,000 to 3,000,000 rows with Adam, dense features, batches of 4,096 to 16,384."""
from parts import *

seed(11)
rows = [3_000_000, 1_500_000, 400_000, 200_000, 100_000, 50_000, 20_000, 8_000, 4_000, 2_000, 1_000]
tables = nn.ModuleList(nn.EmbeddingBag(n, 64, mode="mean") for n in rows).to(DEV)
bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64)).to(DEV)
top = nn.Sequential(nn.Linear(66 + 64, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)).to(DEV)
opt = torch.optim.Adam([*tables.parameters(), *bottom.parameters(), *top.parameters()], 1e-3)
for i in steps(60):
    n = random.choice([4096, 8192, 16384])
    hot = [torch.randint(0, r, (n, random.randint(1, 5)), device=DEV) for r in rows]
    x = bottom(torch.randn(n, 13, device=DEV))
    all_ = torch.stack([x, *(t(h) for t, h in zip(tables, hot))], 1)
    cross = torch.bmm(all_, all_.transpose(1, 2))
    a, b = torch.triu_indices(12, 12, 1, device=DEV)
    y = top(torch.cat([x, cross[:, a, b]], 1))[:, 0]
    loss = F.binary_cross_entropy_with_logits(y, torch.randint(0, 2, (n,), device=DEV).float())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
