"""Fine-tuning in bf16 with optimizer states of 8 bits by blocks of 256, gradients over four micro-batches, checkpointed blocks."""
from torch.utils.checkpoint import checkpoint

from parts import *

seed(17)
model = GPT(32000, 1024, 20, 16, 1024).to(DEV, torch.bfloat16)


def quantize(t):
    flat = F.pad(t.flatten(), (0, -t.numel() % 256)).view(-1, 256)
    scale = flat.abs().amax(1, keepdim=True).clamp(min=1e-12)
    return (flat / scale * 127).round().to(torch.int8), scale


def dequantize(q, scale, like):
    return (q.float() / 127 * scale).flatten()[: like.numel()].view_as(like)


state = {}


@torch.no_grad()
def step(lr=1e-4):
    for p in model.parameters():
        g = p.grad.float()
        m, v = (dequantize(*s, g) for s in state[p]) if p in state else (torch.zeros_like(g), torch.zeros_like(g))
        m, v = m.lerp(g, 0.1), v.lerp(g * g, 0.01)
        p.sub_((lr * m / (v.abs().sqrt() + 1e-6)).to(p.dtype))
        state[p] = quantize(m), quantize(v)
        p.grad = None


for i in steps(16, 9):
    for micro in range(4):
        n, t = random.choice([(4, 256), (2, 512), (4, 400), (1, 1000), (8, 128)])
        ids = torch.randint(0, 32000, (n, t + 1), device=DEV)
        x = model.tok(ids[:, :-1]) + model.pos(torch.arange(t, device=DEV))
        for b in model.blocks:
            x = checkpoint(b, x, use_reentrant=False)
        loss = F.cross_entropy(model.head(model.norm(x)).flatten(0, 1).float(), ids[:, 1:].flatten()) / 4
        loss.backward()
    step()
