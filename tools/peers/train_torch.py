"""The models of `weir bench train` in PyTorch: the same weights, data and precision, and the same keys of JSON.

python3 train_torch.py [large] [small] [transformer] [--steps N] [--more N] [--graph] [--fp32]
python3 train_torch.py --width W --layers L --rows R [--heads H --context T]
python3 -m torch.distributed.run --nproc-per-node N train_torch.py ...       DistributedDataParallel

The transformer runs under autocast: parameters, gradients, residuals and normalizations in float32, products in bfloat16.
"""
import argparse
import contextlib
import json
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = 256
MODELS = {"large": (4096, 8, 2048, 0, 0), "small": (1024, 8, 1024, 0, 0), "transformer": (768, 12, 12, 12, 512)}


def mix(x):  # splitmix64
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def drawn(rows, columns, seed, scale):
    places = np.arange(rows * columns, dtype=np.uint64)
    with np.errstate(over="ignore"):
        bits = mix(np.uint64(seed) ^ mix(places)) >> np.uint64(40)
    values = (bits.astype(np.float32) * np.float32(2**-23) - np.float32(1)) * np.float32(scale)
    return torch.from_numpy(values.reshape(rows, columns)).cuda()


def text(sequences, context, rank):  # [sequences, context + 1]
    first = (np.uint64(rank * sequences) + np.arange(sequences, dtype=np.uint64)) * np.uint64(context + 1)
    tokens = np.zeros((sequences, context + 1), dtype=np.int64)
    token = np.zeros(sequences, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for t in range(context + 1):
            u = mix(np.uint64(5000) ^ mix(first + np.uint64(t)))
            follows = (u % np.uint64(4) != 0) & (t > 0)
            token = np.where(follows, mix(token), u >> np.uint64(32)) % np.uint64(VOCABULARY)
            tokens[:, t] = token
    return torch.from_numpy(tokens).cuda()


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.between, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, context, width = x.shape
        qkv = self.qkv(self.before(x)).view(rows, context, self.heads, 3, width // self.heads)
        q, k, v = qkv.permute(3, 0, 2, 1, 4).unbind(0)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, context, width)
        x = x + self.proj(o)
        return x + self.down(F.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    def __init__(self, width, layers, heads, context):
        super().__init__()
        self.of_token, self.of_place = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.of_token(tokens) + self.of_place.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    @torch.no_grad()
    def draw(self):
        usual = np.float32(0.02) * np.sqrt(np.float32(3))
        to_residual = usual / np.sqrt(np.float32(2 * len(self.layers)))
        number = 0
        for name, p in self.named_parameters():
            if p.dim() == 1:
                p.fill_(1.0 if name.endswith("weight") else 0.0)
            elif name.startswith("of_"):
                p.copy_(drawn(*p.shape, number, usual))
            else:
                scale = to_residual if ".proj." in name or ".down." in name else usual
                p.copy_(drawn(p.shape[1], p.shape[0], number, scale).t())
            number += 1


def linear_layers(width, layers):
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())]).cuda()
    scale = np.float32(1) / np.sqrt(np.float32(width))
    with torch.no_grad():
        for layer in range(layers):
            model[2 * layer].weight.copy_(drawn(width, width, 2 * layer, scale).t())
            model[2 * layer].bias.copy_(drawn(1, width, 2 * layer + 1, scale)[0])
    return model


def run(width, layers, rows, heads, context, a, rank, ranks):
    if heads:
        model, rate = Transformer(width, layers, heads, context).cuda(), 0.003
        model.draw()
        tokens = text(rows, context, rank)
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    else:
        model, rate = linear_layers(width, layers), 1e-3
        x, y = drawn(rows, width, 1000 + 2 * rank, 1.7), drawn(rows, width, 1001 + 2 * rank, 1.7)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    if ranks > 1:
        with torch.cuda.stream(side) if a.graph else contextlib.nullcontext():  # a capture asks for that
            model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, fused=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()

    def step():
        optimizer.zero_grad(set_to_none=not a.graph)
        with torch.autocast("cuda", torch.bfloat16, enabled=heads > 0 and not a.fp32, cache_enabled=not a.graph):
            out = model(x)
            loss = F.cross_entropy(out.view(-1, VOCABULARY), y.view(-1)) if heads else (out - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    loss = None
    if a.graph:
        with torch.cuda.stream(side):
            for _ in range(a.warm if ranks == 1 else max(a.warm, 11)):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        turn = graph.replay
    else:
        for _ in range(a.warm):
            loss = step()
        turn = step
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(a.steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        got = turn()
        loss = loss if a.graph else got
        mark.record()
    for _ in range(a.more):
        got = turn()
        loss = loss if a.graph else got
    torch.cuda.synchronize()
    times = sorted(marks[i].elapsed_time(marks[i + 1]) for i in range(a.steps))
    if rank == 0:
        what = {"transformer": [width, layers, heads, context, rows], "type": "float32" if a.fp32 else "bfloat16"} if heads else {"mlp": [width, layers, rows]}
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "ranks": ranks, "graph": a.graph, **what,
                          "ms_a_step": round(times[len(times) // 2], 4), "loss": loss.item(),
                          "peak_in_use": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()}), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    for name, value in (("width", 0), ("layers", 8), ("rows", 2048), ("heads", 0), ("context", 512), ("steps", 50), ("warm", 10), ("more", 0)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--graph", action="store_true")
    p.add_argument("--fp32", action="store_true")
    a = p.parse_args()
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.backends.cuda.matmul.allow_tf32 = not a.fp32
    if ranks > 1:
        if a.graph:
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        dist.init_process_group("nccl")
    own = [(a.width, a.layers, a.rows, a.heads, a.context)] if a.width else []
    for shape in own + [MODELS[name] for name in a.models or ([] if own else MODELS)]:
        run(*shape, a, rank, ranks)
        torch.cuda.empty_cache()
    if ranks > 1:
        dist.destroy_process_group()


main()
