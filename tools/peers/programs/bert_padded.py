"""An encoder trained on masked words, batches padded to their longest (30 to 512), scores kept in memory, AdamW, mixed precision."""
from parts import *

seed(22)
V, D = 30522, 768
emb, pos = nn.Embedding(V, D).to(DEV), nn.Embedding(512, D).to(DEV)
blocks = nn.ModuleList(Block(D, 12, plain=True) for _ in range(12)).to(DEV)
opt = torch.optim.AdamW([*emb.parameters(), *pos.parameters(), *blocks.parameters()], 1e-4)
for i in steps(60):
    top = int(min(512, max(30, random.lognormvariate(5.0, 0.7))))
    n = 16 if top < 256 else 8
    ids = torch.randint(0, V, (n, top), device=DEV)
    masked = torch.rand(n, top, device=DEV) < 0.15
    with torch.autocast("cuda", torch.bfloat16):
        x = emb(ids.masked_fill(masked, 103)) + pos.weight[:top]
        for b in blocks:
            x = b(x)
        loss = F.cross_entropy(x[masked] @ emb.weight.t(), ids[masked])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(blocks.parameters(), 1.0)
    opt.step()
    if i % 15 == 14:
        loss.item()
