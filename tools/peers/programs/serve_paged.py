"""Serving from one paged cache, taken once as most of the device: prefills of many lengths, then decoding steps that gather pages."""
from parts import *

seed(9)
D, LAYERS, HEADS, HD, PAGE, PAGES = 2048, 16, 16, 128, 16, 12000
layers = nn.ModuleList(Block(D, HEADS) for _ in range(LAYERS)).to(DEV, torch.bfloat16)
emb = nn.Embedding(50000, D).to(DEV, torch.bfloat16)
pool = [torch.zeros(2, PAGES, PAGE, HEADS, HD, device=DEV, dtype=torch.bfloat16) for _ in range(LAYERS)]
free = list(range(PAGES))
running = []


def pages_for(r, n):
    while len(r["pages"]) * PAGE < n:
        r["pages"].append(free.pop())


@torch.inference_mode()
def prefill(rs):
    top = max(r["have"] for r in rs)
    x = emb(torch.randint(0, 50000, (len(rs), top), device=DEV))
    for k, l in enumerate(layers):
        q, key, val = l.attn.qkv(l.n1(x)).view(len(rs), top, 3, HEADS, HD).unbind(2)
        for i, r in enumerate(rs):
            n = r["have"]
            slots = torch.tensor([p * PAGE + j for p in r["pages"] for j in range(PAGE)][:n], device=DEV) if k == 0 else r["slots"]
            r["slots"] = slots
            flat = pool[k].view(2, PAGES * PAGE, HEADS, HD)
            flat[0].index_copy_(0, slots, key[i, :n])
            flat[1].index_copy_(0, slots, val[i, :n])
        y = F.scaled_dot_product_attention(q.transpose(1, 2), key.transpose(1, 2), val.transpose(1, 2), is_causal=True)
        x = x + l.attn.out(y.transpose(1, 2).reshape(len(rs), top, D))
        x = x + l.mlp(l.n2(x))
    return (x[:, -1] @ emb.weight.t()).argmax(-1)


@torch.inference_mode()
def decode(rs):
    n = max(r["have"] for r in rs)
    width = (n + PAGE - 1) // PAGE
    table = torch.tensor([(r["pages"] + [0] * width)[:width] for r in rs], device=DEV)
    length = torch.tensor([r["have"] for r in rs], device=DEV)
    x = emb(torch.randint(0, 50000, (len(rs), 1), device=DEV))
    mask = (torch.arange(width * PAGE, device=DEV)[None] <= length[:, None])[:, None, None]
    for k, l in enumerate(layers):
        q, key, val = l.attn.qkv(l.n1(x)).view(len(rs), 1, 3, HEADS, HD).unbind(2)
        flat = pool[k].view(2, PAGES * PAGE, HEADS, HD)
        slot = table.gather(1, (length // PAGE)[:, None].clamp(max=width - 1))[:, 0] * PAGE + length % PAGE
        flat[0].index_copy_(0, slot, key[:, 0])
        flat[1].index_copy_(0, slot, val[:, 0])
        kk, vv = (pool[k][j][table].flatten(1, 2).transpose(1, 2) for j in (0, 1))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), kk, vv, attn_mask=mask)
        x = x + l.attn.out(y.transpose(1, 2).reshape(len(rs), 1, D))
        x = x + l.mlp(l.n2(x))
    return (x[:, -1] @ emb.weight.t()).float().topk(50).values.softmax(-1).multinomial(1).cpu()


for i in steps(400, 9):
    fresh = []
    while len(running) + len(fresh) < 48 and len(free) > 400 and random.random() < 0.6 and len(fresh) < 6:
        r = {"have": int(min(2000, random.lognormvariate(5.8, 0.9) + 8)), "pages": [], "left": random.randint(10, 200)}
        pages_for(r, r["have"] + 1)
        fresh.append(r)
    if fresh:
        prefill(fresh)
        running += fresh
    decode(running)
    for r in running:
        r["have"] += 1
        r["left"] -= 1
        pages_for(r, r["have"] + 1)
    for r in [r for r in running if r["left"] <= 0]:
        free += r["pages"]
        running.remove(r)
