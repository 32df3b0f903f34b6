"""A language model of LSTMs over packed sequences of 10 to 400 words; tied weights, truncated steps, SGD."""
from parts import *

seed(4)


class LM(nn.Module):
    def __init__(self, vocab=20000, d=650):
        super().__init__()
        self.emb, self.drop = nn.Embedding(vocab, d), nn.Dropout(0.4)
        self.rnn = nn.LSTM(d, d, 2, dropout=0.3, batch_first=True)
        self.out = nn.Linear(d, vocab)
        self.out.weight = self.emb.weight

    def forward(self, ids, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.drop(self.emb(ids)), lengths, batch_first=True, enforce_sorted=False)
        y, _ = self.rnn(packed)
        return self.out(self.drop(y.data))


model = LM().to(DEV)
opt = torch.optim.SGD(model.parameters(), 5.0)
for i in steps(150):
    top = int(random.lognormvariate(3.6, 0.6)) + 10
    top = min(top, 120)
    lengths = torch.tensor([random.randint(5, top) for _ in range(20)])
    ids = torch.randint(0, 20000, (20, int(lengths.max()) + 1), device=DEV)
    logits = model(ids[:, :-1], lengths)
    target = nn.utils.rnn.pack_padded_sequence(ids[:, 1:], lengths, batch_first=True, enforce_sorted=False).data
    opt.zero_grad()
    F.cross_entropy(logits, target).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    opt.step()
