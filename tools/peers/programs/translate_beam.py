"""An encoder and a decoder: some steps of training on padded batches, then beam search with caches that are reordered and grow."""
from parts import *

seed(10)
D, V = 512, 12000
emb = nn.Embedding(V, D).to(DEV)
enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 8, 2048, batch_first=True), 4).to(DEV)
dec = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 8, 2048, batch_first=True), 4).to(DEV)
params = [*emb.parameters(), *enc.parameters(), *dec.parameters()]
opt = torch.optim.Adam(params, 1e-4)


def batch(n, top):
    lens = torch.randint(5, top, (n,))
    ids = torch.randint(1, V, (n, int(lens.max())))
    for i, k in enumerate(lens):
        ids[i, k:] = 0
    return ids.to(DEV)


for era in steps(6, 9):
    for i in range(10):
        n, top = random.choice([(64, 40), (32, 80), (16, 160)])
        src, tgt = batch(n, top), batch(n, top)
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1] - 1, device=DEV)
        memory = enc(emb(src), src_key_padding_mask=src == 0)
        h = dec(emb(tgt[:, :-1]), memory, tgt_mask=mask, memory_key_padding_mask=src == 0)
        loss = F.cross_entropy((h @ emb.weight.t()).flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
    enc.eval(), dec.eval()
    with torch.no_grad():
        for n in (1, 4, 8):
            src = batch(n, random.randint(10, 80))
            beams = 4
            memory = enc(emb(src)).repeat_interleave(beams, 0)
            ids = torch.ones(n * beams, 1, dtype=torch.long, device=DEV)
            score = torch.zeros(n, beams, device=DEV)
            score[:, 1:] = -1e9
            caches = [None] * 4
            for t in range(random.randint(15, 50)):
                x = emb(ids[:, -1:])
                for k, l in enumerate(dec.layers):
                    caches[k] = x if caches[k] is None else torch.cat([caches[k], x], 1)
                    x = l.norm1(x + l.self_attn(x, caches[k], caches[k], need_weights=False)[0])
                    x = l.norm2(x + l.multihead_attn(x, memory, memory, need_weights=False)[0])
                    x = l.norm3(x + l.linear2(F.relu(l.linear1(x))))
                logp = (x[:, 0] @ emb.weight.t()).log_softmax(-1).view(n, beams, V) + score[:, :, None]
                score, best = logp.flatten(1).topk(beams, -1)
                rows = (best // V + torch.arange(n, device=DEV)[:, None] * beams).flatten()
                ids = torch.cat([ids[rows], (best % V).flatten()[:, None]], 1)
                caches = [c[rows] for c in caches]
    enc.train(), dec.train()
