"""A mixture of experts whose router sends another number of tokens to each expert in each step: blocks of data-dependent size."""
from parts import *

seed(6)


class MoE(nn.Module):
    def __init__(self, d, experts=16, top=2):
        super().__init__()
        self.gate, self.top = nn.Linear(d, experts), top
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(experts))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weight, choice = self.gate(flat).softmax(-1).topk(self.top, -1)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            token, slot = (choice == e).nonzero(as_tuple=True)
            if len(token):
                out.index_add_(0, token, (expert(flat[token]) * weight[token, slot, None]).to(out.dtype))
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2, self.attn, self.moe = nn.LayerNorm(d), nn.LayerNorm(d), Attention(d, 8), MoE(d)

    def forward(self, x):
        x = x + self.attn(self.n1(x), True)
        return x + self.moe(self.n2(x))


emb = nn.Embedding(16000, 512).to(DEV)
layers = nn.ModuleList(Layer(512) for _ in range(6)).to(DEV)
head = nn.Linear(512, 16000).to(DEV)
opt = torch.optim.AdamW([*emb.parameters(), *layers.parameters(), *head.parameters()], 1e-3)
for i in steps(40, 9):
    n, t = random.choice([(4, 512), (8, 512), (8, 384), (6, 640)])
    ids = torch.randint(0, 16000, (n, t + 1), device=DEV)
    with torch.autocast("cuda", torch.bfloat16):
        x = emb(ids[:, :-1])
        for layer in layers:
            x = layer(x)
        loss = F.cross_entropy(head(x).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
