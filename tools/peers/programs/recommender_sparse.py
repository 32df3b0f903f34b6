"""The same kind with sparse gradients, SparseAdam, and negatives drawn anew: unique ids differ from step to step."""
from parts import *

seed(12)
users, items = (nn.Embedding(n, 96, sparse=True).to(DEV) for n in (800_000, 300_000))
tower = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 96)).to(DEV)
sparse = torch.optim.SparseAdam([*users.parameters(), *items.parameters()], 1e-3)
dense = torch.optim.Adam(tower.parameters(), 1e-3)
for i in steps(250):
    n = int(random.uniform(1000, 9000))
    u, p = torch.randint(0, 800_000, (n,), device=DEV), (torch.rand(n, device=DEV) ** 3 * 300_000).long()
    neg = torch.unique((torch.rand(4096, device=DEV) ** 2 * 300_000).long())
    q = tower(users(u))
    logits = torch.cat([(q * items(p)).sum(-1, keepdim=True), q @ items(neg).t()], 1)
    loss = F.cross_entropy(logits, torch.zeros(n, dtype=torch.long, device=DEV))
    sparse.zero_grad(), dense.zero_grad()
    loss.backward()
    sparse.step(), dense.step()
