"""A GPT of 1.3 B parameters in bf16 with states and weights of fp32 beside it, lengths of 256 to 1,024, gradients clipped."""
from parts import *

seed(27)
model = GPT(50000, 2048, 20, 16, 1024).to(DEV, torch.bfloat16)
master = [p.detach().float() for p in model.parameters()]
opt = torch.optim.AdamW(master, 1e-4)
for i in steps(14, 10):
    total = random.choice([1, 2])
    for micro in range(total):
        n, t = random.choice([(4, 256), (4, 512), (2, 1024), (3, 700)])
        ids = torch.randint(0, 50000, (n, t + 1), device=DEV)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()) / total
        loss.backward()
        del logits, loss
    for m, p in zip(master, model.parameters()):
        m.grad, p.grad = p.grad.float(), None
    nn.utils.clip_grad_norm_(master, 1.0)
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        for m, p in zip(master, model.parameters()):
            p.copy_(m)
