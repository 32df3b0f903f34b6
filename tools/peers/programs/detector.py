"""A detector with two stages: images of 480 to 1024 a side, batch 2, as many boxes as the image has, suppression, crops, losses."""
from parts import *

seed(7)


def conv(a, b, s=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True))


def iou(a, b):
    lt, rb = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    area = lambda z: (z[:, 2:] - z[:, :2]).clamp(min=0).prod(-1)
    return inter / (area(a)[:, None] + area(b)[None] - inter + 1e-6)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv(3, 64, 2), conv(64, 64, 2))
        self.s2, self.s3 = nn.Sequential(conv(64, 128), conv(128, 128)), nn.Sequential(conv(128, 256, 2), conv(256, 256))
        self.s4 = nn.Sequential(conv(256, 512, 2), conv(512, 512))
        self.lat = nn.ModuleList(nn.Conv2d(c, 256, 1) for c in (128, 256, 512))
        self.rpn, self.score, self.delta = conv(256, 256), nn.Conv2d(256, 3, 1), nn.Conv2d(256, 12, 1)
        self.head = nn.Sequential(nn.Linear(256 * 49, 1024), nn.ReLU(True), nn.Linear(1024, 1024), nn.ReLU(True))
        self.cls, self.box = nn.Linear(1024, 81), nn.Linear(1024, 4)

    def forward(self, image, boxes, labels):
        c2 = self.s2(self.stem(image))
        c3 = self.s3(c2)
        c4 = self.s4(c3)
        p4 = self.lat[2](c4)
        p3 = self.lat[1](c3) + F.interpolate(p4, size=c3.shape[-2:])
        p2 = self.lat[0](c2) + F.interpolate(p3, size=c2.shape[-2:])
        loss = 0.0
        for p, stride in ((p2, 4), (p3, 8), (p4, 16)):
            h = self.rpn(p)
            score, delta = self.score(h).permute(0, 2, 3, 1).reshape(len(p), -1), self.delta(h).permute(0, 2, 3, 1).reshape(len(p), -1, 4)
            y, x = torch.meshgrid(torch.arange(p.shape[2], device=DEV), torch.arange(p.shape[3], device=DEV), indexing="ij")
            centre = torch.stack([x, y], -1).view(-1, 1, 2).float() * stride
            size = torch.tensor([4.0, 8.0, 16.0], device=DEV).view(1, 3, 1) * stride
            anchors = torch.cat([(centre - size / 2).expand(-1, 3, 2), (centre + size / 2).expand(-1, 3, 2)], -1).view(-1, 4)
            for n in range(len(p)):
                match, which = iou(anchors, boxes[n]).max(1)
                fg = match > 0.5
                loss = loss + F.binary_cross_entropy_with_logits(score[n], fg.float())
                if fg.any():
                    loss = loss + F.smooth_l1_loss(delta[n][fg], boxes[n][which[fg]] / 100)
                top = score[n].detach().topk(min(1000, score.shape[1])).indices
                cand = (anchors[top] + 8 * delta[n].detach()[top]).clamp(0, image.shape[-1])
                keep = (iou(cand, cand).triu(1).max(0).values < 0.7).nonzero()[:, 0][: random.randint(60, 300)]
                rois = torch.cat([cand[keep], boxes[n]])
                span = (rois[:, 2:] - rois[:, :2]).clamp(min=1)
                g = torch.linspace(0, 1, 7, device=DEV)
                gx = (rois[:, 0, None] + g * span[:, 0, None]) / image.shape[-1] * 2 - 1
                gy = (rois[:, 1, None] + g * span[:, 1, None]) / image.shape[-2] * 2 - 1
                grid = torch.stack([gx[:, None].expand(-1, 7, -1), gy[:, :, None].expand(-1, -1, 7)], -1)
                crops = F.grid_sample(p[n : n + 1], grid.reshape(1, -1, 7, 2), align_corners=False)
                h2 = self.head(crops.view(256, -1, 49).transpose(0, 1).flatten(1))
                m, w = iou(rois, boxes[n]).max(1)
                target = torch.where(m > 0.5, labels[n][w], 0)
                loss = loss + F.cross_entropy(self.cls(h2), target)
                if (m > 0.5).any():
                    loss = loss + F.smooth_l1_loss(self.box(h2[m > 0.5]), boxes[n][w[m > 0.5]] / 100)
        return loss


model = Detector().to(DEV)
opt = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
for i in steps(40, 9):
    h, w = random.choice([480, 544, 608, 672, 736, 800]), random.choice([640, 768, 896, 1024])
    boxes, labels = [], []
    for _ in range(2):
        k = random.randint(1, 40)
        a = torch.rand(k, 2, device=DEV) * 400
        boxes.append(torch.cat([a, a + 16 + torch.rand(k, 2, device=DEV) * 150], 1))
        labels.append(torch.randint(1, 81, (k,), device=DEV))
    opt.zero_grad()
    model(torch.randn(2, 3, h, w, device=DEV), boxes, labels).backward()
    opt.step()
