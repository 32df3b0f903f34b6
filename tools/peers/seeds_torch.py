#!/usr/bin/env python3
"""The seeds' experiments as their articles have them, with PyTorch on a GPU: its figures, to stand beside weir's.

Usage: seeds_torch.py        needs PyTorch with CUDA; the rows are named as `./run seeds` names them.
"""
import time

import torch

GIB, MIB = 1 << 30, 1 << 20


def words(n):
    if n >= GIB:
        return f"{n / GIB:.3f} GiB"
    if n >= MIB:
        return f"{n / MIB:.1f} MiB"
    return f"{n / 1024:.1f} KiB" if n >= 10240 else f"{n} B"


def row(step):
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    print(f"{step:<46}{words(torch.cuda.memory_allocated()):>12}{words(torch.cuda.memory_reserved()):>12}{words(total - free):>13}", flush=True)


def title(text):
    torch.cuda.empty_cache()
    print(f"\n{text}")


def fits(make):
    try:
        return make()
    except torch.cuda.OutOfMemoryError:
        return None


def gib(n=1, **where):
    return torch.zeros(n * GIB // 4, **({"device": "cuda"} | where))


def reuse():
    title("1. Give back and reuse")
    row("")
    a = gib()
    row("a = zeros(1 GiB)")
    b = gib()
    row("b = zeros(1 GiB)")
    b = b.to("cpu")
    row("b = b.to(cpu)")
    c = gib()
    row("c = zeros(1 GiB)")
    c = gib()
    row("c = zeros(1 GiB), over the old c")
    d = gib()
    row("d = zeros(1 GiB)")
    del d
    row("del d")
    e = gib(device="cpu")
    row("e = zeros(1 GiB) on the cpu")
    e = e.to("cuda")
    row("e = e.to(gpu)")
    del c
    c = gib()
    row("c dropped first, then zeros(1 GiB)")
    del a, b, c, e


def small():
    title("2. Small blocks, where 4 GiB fit and 5 do not")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(4.5 * GIB / total)
    print("  5 GiB:", "fit" if fits(lambda: gib(5)) is not None else "are refused")
    whole = fits(lambda: gib(4))
    row("4 GiB")
    del whole
    torch.cuda.empty_cache()
    for n in (1, 128, 129):
        one = torch.empty(n, device="cuda")
        row(f"{n} float" + ("s" if n > 1 else ""))
        del one
    torch.cuda.empty_cache()
    began = time.perf_counter()
    many = [torch.empty(129, device="cuda") for _ in range(4 * MIB)]
    row("4 Mi x 129 floats")
    print(f"  {(time.perf_counter() - began) / (4 * MIB) * 1e9:.0f} ns each")
    large = fits(gib)
    row("  and then 1 GiB" + ("" if large is not None else ": out of memory"))
    del many, large
    torch.cuda.empty_cache()
    row("all dropped, empty_cache")
    many = [torch.empty(1, device="cuda") for _ in range(8 * MIB)]
    row("8 Mi x 1 float")
    del many
    torch.cuda.empty_cache()
    many = [torch.empty(MIB // 2, device="cuda") for _ in range(2048)]
    row("2048 x 2 MiB")
    del many
    torch.cuda.empty_cache()
    many = [torch.empty(MIB // 4 + 1, device="cuda") for _ in range(2048)]
    row("2048 x (1 MiB + 4 B)")
    del many
    torch.cuda.set_per_process_memory_fraction(1.0)


def watch():
    title("4. Watching")
    t1, t2 = torch.randn(1024, 1024, device="cuda"), torch.randn(512, 512, device="cuda")
    row("t1 = randn(1024, 1024), t2 = randn(512, 512)")
    torch.cuda.empty_cache()
    row("empty_cache while both live")
    del t1, t2
    row("both dropped")
    torch.cuda.empty_cache()
    row("empty_cache")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(GIB / total)
    full = [torch.empty(MIB, device="cuda") for _ in range(240)]  # 256 do not fit: segments have 20 MiB
    del full[::2]
    row("full of 4 MiB blocks, every other one dropped")
    quarter = fits(lambda: torch.empty(64 * MIB, device="cuda"))
    row("a block of a quarter of the device" + ("" if quarter is not None else ": out of memory"))
    del full, quarter
    torch.cuda.set_per_process_memory_fraction(1.0)


def training():
    title("5. Training memory")
    a, b = (torch.randn(100, 100, device="cuda", requires_grad=True) for _ in range(2))
    loss = (a * b).sin().mean()
    row("loss = (a * b).sin().mean()")
    loss.backward()
    row("loss.backward()")
    del loss
    row("loss dropped")
    layers = torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(128, 128, bias=False), torch.nn.ReLU())]).cuda()
    x = torch.randn(512, 128, device="cuda")
    row("8 parameters of 128 x 128")
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    loss = layers(x).mean()
    row("8 layers, batch 512: forward")
    loss.backward()
    row("backward")
    plain = torch.cuda.max_memory_allocated() - start
    layers.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    torch.utils.checkpoint.checkpoint_sequential(layers, 2, x, use_reentrant=False).mean().backward()
    row("a step with checkpoint(2 layers)")
    print(f"  its peak is {words(torch.cuda.max_memory_allocated() - start)} over the parameters, without {words(plain)}")


if __name__ == "__main__":
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}")
    print(f"{'step':<46}{'allocated':>12}{'reserved':>12}{'device used':>13}")
    import torch.utils.checkpoint

    reuse()
    small()
    watch()
    training()
