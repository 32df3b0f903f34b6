"""Speech: a conformer with CTC on utterances of 1 to 16 s, batched by total length, spectrograms made on the device."""
from parts import *

seed(14)


class Layer(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        ff = lambda: nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * d, d))
        self.f1, self.f2, self.n, self.m = ff(), ff(), nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, 4, 0.1, batch_first=True)
        self.p1, self.dw, self.bn, self.p2 = nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 31, padding=15, groups=d), nn.BatchNorm1d(d), nn.Conv1d(d, d, 1)

    def forward(self, x, mask):
        x = x + 0.5 * self.f1(x)
        h = self.n(x)
        x = x + self.attn(h, h, h, key_padding_mask=mask, need_weights=False)[0]
        h = F.glu(self.p1(self.m(x).transpose(1, 2)), 1)
        x = x + self.p2(F.silu(self.bn(self.dw(h)))).transpose(1, 2)
        return x + 0.5 * self.f2(x)


front = nn.Sequential(nn.Conv2d(1, 128, 3, 2), nn.ReLU(), nn.Conv2d(128, 128, 3, 2), nn.ReLU()).to(DEV)
proj, layers, head = nn.Linear(128 * 19, 256).to(DEV), nn.ModuleList(Layer() for _ in range(12)).to(DEV), nn.Linear(256, 1000).to(DEV)
params = [*front.parameters(), *proj.parameters(), *layers.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, 1e-4)
window = torch.hann_window(400, device=DEV)
for i in steps(60, 9):
    top = random.uniform(1.5, 16)
    n = max(2, int(100 / top))
    lens = sorted((int(16000 * random.uniform(top * 0.6, top)) for _ in range(n)), reverse=True)
    wave = torch.randn(n, lens[0], device=DEV)
    spec = torch.stft(wave, 400, 160, window=window, return_complex=True).abs().pow(2)[:, :80].clamp(min=1e-6).log()
    h = front(spec.transpose(1, 2)[:, None])
    x = proj(h.permute(0, 2, 1, 3).flatten(2))
    frames = torch.tensor([max(1, int(x.shape[1] * l / lens[0])) for l in lens])
    mask = torch.arange(x.shape[1], device=DEV)[None] >= frames.to(DEV)[:, None]
    for l in layers:
        x = l(x, mask)
    logp = head(x).log_softmax(-1).transpose(0, 1)
    words = torch.tensor([max(1, int(f) // 6) for f in frames])
    target = torch.randint(1, 1000, (int(words.sum()),), device=DEV)
    loss = F.ctc_loss(logp, target, frames.to(DEV), words.to(DEV), zero_infinity=True)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 5.0)
    opt.step()
