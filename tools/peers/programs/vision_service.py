"""A service: a convolutional net without gradients, requests of 1 to 32 pictures of many sizes, results copied back; half precision."""
from parts import *

seed(21)
blk = lambda a, b, s: nn.Sequential(nn.Conv2d(a, b, 3, s, 1), nn.BatchNorm2d(b), nn.SiLU(), nn.Conv2d(b, b, 3, 1, 1), nn.BatchNorm2d(b), nn.SiLU())
net = nn.Sequential(blk(3, 48, 2), blk(48, 96, 2), blk(96, 192, 2), blk(192, 384, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(384, 1000)).to(DEV, torch.float16).eval()
with torch.inference_mode():
    for i in steps(600):
        n, h, w = random.choice([1, 1, 1, 2, 4, 8, 16, 32]), random.randint(120, 520), random.randint(120, 520)
        raw = torch.randint(0, 255, (n, h, w, 3), dtype=torch.uint8)
        x = raw.to(DEV).permute(0, 3, 1, 2).to(torch.float16).div(255)
        side = random.choice([224, 288, 384])
        x = F.interpolate(x, size=(side, side), mode="bilinear", antialias=True)
        x = (x - 0.45) / 0.22
        y = net(x).float().softmax(-1)
        y.topk(5).values.cpu()
