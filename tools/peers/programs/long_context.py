"""Long texts with scores in memory (older attention): lengths of 1,000 to 4,000, batch 1, checkpointing of every second block."""
from torch.utils.checkpoint import checkpoint

from parts import *

seed(29)
model = GPT(32000, 1024, 10, 16, 4096, plain=True).to(DEV)
opt = torch.optim.AdamW(model.parameters(), 1e-4)
for i in steps(30, 10):
    t = random.randint(1000, 4000)
    ids = torch.randint(0, 32000, (1, t + 1), device=DEV)
    with torch.autocast("cuda", torch.bfloat16):
        x = model.tok(ids[:, :-1]) + model.pos.weight[:t]
        for k, b in enumerate(model.blocks):
            x = checkpoint(b, x, use_reentrant=False) if k % 2 else b(x)
        loss = F.cross_entropy(model.head(model.norm(x)).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
