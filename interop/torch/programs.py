"""PyTorch programs for bench.py and check.py: each is a function of the number of steps that yields after every step.

They need PyTorch alone. Sizes are for a GPU of 80 GB.
"""
import random
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).split(width, 2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class GPT2(nn.Module):
    """The small GPT-2: 124 million parameters."""

    def __init__(self, words=50257, length=1024, layers=12, width=768, heads=12):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.word.weight

    def forward(self, ids):
        x = self.word(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def gpt2(steps, batch=8, length=1024, **shape):
    """Training with two accumulated parts a step, and an evaluation of another shape after every fourth."""
    model = GPT2(length=length, **shape).cuda()
    words = model.word.num_embeddings
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        for _ in range(2):
            ids = torch.randint(words, (batch, length), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(ids)
                loss = F.cross_entropy(logits[:, :-1].reshape(-1, words).float(), ids[:, 1:].reshape(-1)) / 2
            loss.backward()
            del logits, loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 4 == 3:
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                model(torch.randint(words, (batch * 3 // 2, length * 3 // 4), device="cuda"))
        yield model


def convolutions():
    layers, channels = [], 3
    for width in (64, 64, 128, 128, 256, 256, 512, 512):
        stride = 2 if width != channels and channels != 3 else 1
        layers += [nn.Conv2d(channels, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def prefetch(steps, batch=128, sizes=(160, 192, 224, 256)):
    """Images of changing size come on a copy stream during training; a third stream reads the result."""
    model = convolutions().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    copies, side = torch.cuda.Stream(), torch.cuda.Stream()
    host = {size: torch.randn(batch, 3, size, size).pin_memory() for size in sizes}

    def load(size):
        with torch.cuda.stream(copies):
            return host[size].to("cuda", non_blocking=True)

    coming = load(sizes[0])
    for _ in range(steps):
        main = torch.cuda.current_stream()
        main.wait_stream(copies)
        images = coming
        images.record_stream(main)
        coming = load(random.choice(sizes))
        with torch.autocast("cuda", torch.bfloat16):
            out = model(images).float()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            seen = (out.detach() @ torch.ones(1000, 4096, device="cuda")).softmax(-1)
            out.record_stream(side)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del images, out, seen
        yield model


def gather(steps, layers=32, width=8192, parts=8, rows=2048):
    """As in sharded training: weights in parts are put together layer by layer on a second stream, used, and freed."""
    def shard():
        return torch.randn(width // parts, width, device="cuda", dtype=torch.bfloat16) * width ** -0.5

    shards = [[shard() for _ in range(parts)] for _ in range(layers)]
    start = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(steps):
        x = start
        main = torch.cuda.current_stream()
        for own in shards:
            with torch.cuda.stream(side):
                whole = torch.cat(own)
            main.wait_stream(side)
            x = torch.tanh(x @ whole)
            whole.record_stream(main)
            del whole
        yield x


def copies_to_second_device():
    """Copies of 256 MiB to a second device. The first opens memory to it. Rates of later copies are
    medians in GB/s: x.to() and copy_() of memory allocated before, copy_() of memory allocated since, and twenty
    copies without a wait. Asserts the bytes."""
    def rate(act, x, turns=1):
        taken = []
        for _ in range(30):
            torch.cuda.synchronize(0)
            began = time.perf_counter()
            for _ in range(turns):
                y = act()
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            taken.append((time.perf_counter() - began) / turns)
        assert torch.equal(x.cpu(), y.cpu()), "the copy differs"
        return round(x.numel() * 4 / statistics.median(taken) / 1e9, 1)

    x = torch.arange(1 << 26, device="cuda:0", dtype=torch.float32)
    torch.cuda.synchronize()
    began = time.perf_counter()
    y = x.to("cuda:1")
    torch.cuda.synchronize(1)
    first = time.perf_counter() - began
    later = x + 1
    return {"first_ms": round(first * 1e3, 2), "to_GB_s": rate(lambda: x.to("cuda:1"), x),
            "GB_s": rate(lambda: y.copy_(x), x), "open_GB_s": rate(lambda: y.copy_(later), later),
            "row_GB_s": rate(lambda: y.copy_(x), x, 20)}
