"""A loader's thread pins batches, a copy stream fetches them ahead, record_stream keeps them; another stream evaluates meanwhile."""
import queue
import threading

from parts import *

seed(16)
model = nn.Sequential(*[nn.Sequential(nn.Conv2d(a, b, 3, s, 1), nn.BatchNorm2d(b), nn.ReLU(True)) for a, b, s in ((3, 64, 2), (64, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2))], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).to(DEV)
opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
copies, side = torch.cuda.Stream(), torch.cuda.Stream()
ready = queue.Queue(3)
STEPS = 70


def load():
    r = random.Random(1)
    for _ in range(STEPS):
        n, s = r.choice([16, 32, 48, 64]), r.choice([96, 128, 160])
        ready.put((torch.randint(0, 255, (n, 3, s, s), dtype=torch.uint8).pin_memory(), torch.randint(0, 1000, (n,)).pin_memory()))
    ready.put(None)


threading.Thread(target=load, daemon=True).start()


def fetch():
    got = ready.get()
    if got is None:
        return None
    with torch.cuda.stream(copies):
        x, y = got[0].to(DEV, non_blocking=True).float().div_(255), got[1].to(DEV, non_blocking=True)
    return x, y


ahead = [fetch(), fetch()]
i = 0
while ahead[0] is not None:
    torch.cuda.current_stream().wait_stream(copies)
    x, y = ahead.pop(0)
    for t in (x, y):
        t.record_stream(torch.cuda.current_stream())
    ahead.append(fetch() if ahead[0] is not None else None)
    out = model(x)
    loss = F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 5 == 0:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            z = x[:8].contiguous()
            x.record_stream(side)
            stats = torch.stack([z.mean(), z.std(), out.detach().norm()])
            out.record_stream(side)
        del z
    i += 1
