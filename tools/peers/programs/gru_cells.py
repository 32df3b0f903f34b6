"""A small GRU written as a loop of cells over 20 to 200 steps: many small operations, a graph as long as the sequence."""
from parts import *

seed(5)
cell, emb, out = nn.GRUCell(128, 256).to(DEV), nn.Embedding(500, 128).to(DEV), nn.Linear(256, 500).to(DEV)
params = [*cell.parameters(), *emb.parameters(), *out.parameters()]
opt = torch.optim.Adam(params, 1e-3)
for i in steps(120):
    n, t = random.choice([16, 32, 64]), random.randint(20, 200)
    ids = torch.randint(0, 500, (n, t + 1), device=DEV)
    h, losses = torch.zeros(n, 256, device=DEV), []
    for k in range(t):
        h = cell(emb(ids[:, k]), h)
        losses.append(F.cross_entropy(out(h), ids[:, k + 1]))
        if k % 50 == 49:  # truncated
            opt.zero_grad()
            torch.stack(losses).mean().backward()
            opt.step()
            h, losses = h.detach(), []
