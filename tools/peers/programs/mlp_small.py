"""A small MLP on tables, thousands of short steps: what a first lesson looks like. Peak some tens of MB."""
from parts import *

seed(15)
X, Y = torch.randn(60000, 784, device=DEV), torch.randint(0, 10, (60000,), device=DEV)
model = nn.Sequential(nn.Linear(784, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEV)
opt = torch.optim.Adam(model.parameters(), 1e-3)
for epoch in steps(8, 6):
    order, total = torch.randperm(60000, device=DEV), 0.0
    for k in range(0, 60000, 256):
        at = order[k : k + 256]
        loss = F.cross_entropy(model(X[at]), Y[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        (model(X[:10000]).argmax(1) == Y[:10000]).float().mean().item()
    model.train()
