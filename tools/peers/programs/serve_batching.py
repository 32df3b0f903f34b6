"""Serving with continuous batching: requests come and go, prompts of 16 to 900 tokens, a cache for each request grown in steps of
64 tokens; a prefill when there is room, otherwise one token for all that run."""
from parts import *

seed(8)
D, LAYERS, HEADS, HD = 1024, 12, 16, 64


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.gate, self.down = nn.Linear(D, 2816), nn.Linear(D, 2816), nn.Linear(2816, D)


layers = nn.ModuleList(Layer() for _ in range(LAYERS)).to(DEV, torch.bfloat16)
emb = nn.Embedding(32000, D).to(DEV, torch.bfloat16)


def step(rows, ids):
    """Tokens `ids` of the requests `rows`, one after another in one flat batch; appends keys and values to their caches."""
    lens = [len(i) for i in ids]
    x = emb(torch.cat(ids))
    for k, l in enumerate(layers):
        q, key, val = l.qkv(l.n1(x)).view(-1, 3, HEADS, HD).unbind(1)
        ys, at = [], 0
        for r, n in zip(rows, lens):
            cache, have = r["cache"], r["have"]
            if have + n > cache.shape[2]:  # grows by whole chunks, all layers at once
                bigger = torch.empty(LAYERS, 2, (have + n + 63) // 64 * 64, HEADS, HD, device=DEV, dtype=torch.bfloat16)
                bigger[:, :, :have] = cache[:, :, :have]
                cache = r["cache"] = bigger
            cache[k, 0, have : have + n], cache[k, 1, have : have + n] = key[at : at + n], val[at : at + n]
            kk, vv = (cache[k, j, : have + n].transpose(0, 1)[None] for j in (0, 1))
            ys.append(F.scaled_dot_product_attention(q[at : at + n].transpose(0, 1)[None], kk, vv, is_causal=n > 1)[0].transpose(0, 1).reshape(n, D))
            at += n
        x = x + l.out(torch.cat(ys))
        h = l.n2(x)
        x = x + l.down(F.silu(l.gate(h)) * l.up(h))
    for r, n in zip(rows, lens):
        r["have"] += n
    last = torch.tensor(lens).cumsum(0).to(DEV) - 1
    return (x[last] @ emb.weight.t()).float().softmax(-1).multinomial(1)


running = []
with torch.inference_mode():
    for i in steps(700, 10):
        for _ in range(random.choice([0, 0, 1, 1, 2])):
            if len(running) < 12:
                n = int(min(900, random.lognormvariate(5.2, 0.9) + 16))
                new = {"cache": torch.empty(LAYERS, 2, 0, HEADS, HD, device=DEV, dtype=torch.bfloat16), "have": 0, "left": random.randint(8, 300)}
                new["next"] = step([new], [torch.randint(0, 32000, (n,), device=DEV)])[0]
                running.append(new)
        if running:
            tokens = step(running, [r["next"] for r in running])
            for r, t in zip(running, tokens):
                r["next"], r["left"] = t, r["left"] - 1
            running = [r for r in running if r["left"] > 0]
