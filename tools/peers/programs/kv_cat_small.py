"""Decoding with a small model whose caches grow by torch.cat, one prompt after another: peak of some hundred MB."""
from parts import *

seed(18)
D, L, H = 512, 8, 8
model = GPT(8000, D, L, H, 2048).to(DEV, torch.float16).eval()
with torch.inference_mode():
    for prompt in steps(30):
        n, t = random.choice([1, 2, 4, 8]), random.randint(10, 400)
        ids = torch.randint(0, 8000, (n, t), device=DEV)
        past = [None] * L
        for k in range(random.randint(20, 250)):
            new = ids if k == 0 else ids[:, -1:]
            x = model.tok(new) + model.pos.weight[ids.shape[1] - new.shape[1] : ids.shape[1]]
            for i, b in enumerate(model.blocks):
                q, key, val = b.attn.qkv(b.n1(x)).view(n, -1, 3, H, D // H).permute(2, 0, 3, 1, 4)
                if past[i] is not None:
                    key, val = torch.cat([past[i][0], key], 2), torch.cat([past[i][1], val], 2)
                past[i] = key, val
                y = F.scaled_dot_product_attention(q, key, val, is_causal=k == 0)
                x = x + b.attn.out(y.transpose(1, 2).reshape(n, -1, D))
                x = x + b.mlp(b.n2(x))
            logits = model.head(model.norm(x[:, -1]))
            top = logits.float().topk(40)
            pick = torch.multinomial(top.values.softmax(-1), 1)
            ids = torch.cat([ids, top.indices.gather(1, pick)], 1)
