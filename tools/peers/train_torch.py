"""The models of `weir bench train` in PyTorch: the same weights, data and precision, and the same keys of JSON.

python3 train_torch.py [--width W --layers L --rows R] [--steps N] [--more N] [--graph]
python3 -m torch.distributed.run --nproc-per-node N train_torch.py ...       DistributedDataParallel
"""
import argparse
import json
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn


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


def run(width, layers, rows, a, rank, ranks):
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())]).cuda()
    scale = np.float32(1) / np.sqrt(np.float32(width))
    with torch.no_grad():
        for layer in range(layers):
            model[2 * layer].weight.copy_(drawn(width, width, 2 * layer, scale).t())
            model[2 * layer].bias.copy_(drawn(1, width, 2 * layer + 1, scale)[0])
    x, y = drawn(rows, width, 1000 + 2 * rank, 1.7), drawn(rows, width, 1001 + 2 * rank, 1.7)
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, fused=True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()

    def step():
        optimizer.zero_grad(set_to_none=not a.graph)
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    loss = None
    if a.graph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(a.warm):
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
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "graph": a.graph, "ranks": ranks,
                          "mlp": [width, layers, rows], "ms_a_step": round(times[len(times) // 2], 4), "loss": loss.item(),
                          "peak_in_use": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()}), flush=True)


def main():
    p = argparse.ArgumentParser()
    for name, value in (("width", 0), ("layers", 8), ("rows", 2048), ("steps", 50), ("warm", 10), ("more", 0)):
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--graph", action="store_true")
    p.add_argument("--fp32", action="store_true")
    a = p.parse_args()
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.backends.cuda.matmul.allow_tf32 = not a.fp32
    if ranks > 1:
        dist.init_process_group("nccl")
    for width, layers, rows in [(a.width, a.layers, a.rows)] if a.width else [(4096, 8, 2048), (1024, 8, 1024)]:
        run(width, layers, rows, a, rank, ranks)
        torch.cuda.empty_cache()
    if ranks > 1:
        dist.destroy_process_group()


main()
