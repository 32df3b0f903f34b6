#!/usr/bin/env python3
"""What PyTorch and CuPy on weir must do, checked on a machine with GPUs.

Usage: check.py [NAME...]      all checks, four at a time; exit status 0: all passed
A check that needs what the machine lacks says so. With WEIR_TORCH_NATIVE=1 weir is PyTorch's own allocator.
"""
import json
import os
import sys
import tempfile
import textwrap

import graph_checks  # noqa: F401: adds its checks to the list
import native_checks  # noqa: F401: likewise
from checking import NotHere, bits_of, check, child, deterministic, expect, here, main, program, raised

# Results

@check(on="both")
def training_has_the_same_bits():
    torch, programs = deterministic()
    for model in programs.gpt2(5, batch=2, length=128, layers=3, width=192, heads=3, words=1000):
        pass
    return bits_of(*model.parameters())


@check(on="both")
def prefetch_has_the_same_bits():
    torch, programs = deterministic()
    for model in programs.prefetch(25, batch=16, sizes=(64, 96, 80)):
        pass
    return bits_of(*model.parameters())


@check(on="both")
def gather_has_the_same_bits():
    torch, programs = deterministic()
    for out in programs.gather(12, layers=8, width=2048, rows=512):
        pass
    return bits_of(out)


# A block is overwritten by a second stream as soon as it may be: without record_stream the sum would be
# wrong.
@check()
def recorded_stream_is_waited_for():
    import torch

    side = torch.cuda.Stream()
    wrong = 0
    for _ in range(200):
        x = torch.ones(1 << 20, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(200000)
            total = x.sum()
        x.record_stream(side)
        del x
        y = torch.full((1 << 20,), 5.0, device="cuda")
        side.synchronize()
        wrong += total.item() != 1 << 20
        del y
    expect(wrong == 0, wrong, "sums were wrong")
    return {"reserved_MiB": torch.cuda.memory_reserved() >> 20}


@check()
def many_streams():
    import torch

    streams = [torch.cuda.Stream(priority=-(i % 2)) for i in range(80)]
    kept = []
    for stream in streams:
        with torch.cuda.stream(stream):
            kept.append(torch.full((10000,), float(len(kept)), device="cuda"))
    torch.cuda.synchronize()
    expect(all(t[0].item() == i == t[-1].item() for i, t in enumerate(kept)), "a value is wrong")


@check()
def compiled_functions():
    import torch

    f = torch.compile(lambda x: (x.sin() * 2 + x).relu().sum())
    x = torch.randn(1 << 20, device="cuda")
    expect(torch.allclose(f(x), (x.sin() * 2 + x).relu().sum(), rtol=1e-4), "compiled and eager differ")


# PyTorch does not own the stream, so that weir must not use it later.
@check()
def external_streams_may_end():
    import ctypes

    import torch

    driver, main, kept = ctypes.CDLL("libcuda.so.1"), torch.cuda.current_stream(), []
    for i in range(100):
        handle = ctypes.c_void_p()
        expect(driver.cuStreamCreate(ctypes.byref(handle), 1) == 0, "cuStreamCreate")
        stream = torch.cuda.ExternalStream(handle.value)
        with torch.cuda.stream(stream):
            x = torch.full((1 << 22,), float(i), device="cuda")
            kept.append(x[:1000].clone())
        main.wait_stream(stream)
        del x, stream
        expect(driver.cuStreamDestroy_v2(handle) == 0, "cuStreamDestroy")
    expect(all(t[0].item() == i == t[-1].item() for i, t in enumerate(kept)), "a value is wrong")
    peak = torch.cuda.max_memory_reserved() >> 20
    # Frees do not name a stream that may have ended: the memory of up to 64 waits for the whole device.
    expect(peak < 1300, peak, "MiB of 1,700: the memory of ended streams serves no other")
    kept.clear()
    torch.cuda.set_per_process_memory_fraction(0.1)  # looks at the memory of all streams that ended
    torch.empty(int(0.09 * torch.cuda.get_device_properties(0).total_memory), dtype=torch.uint8, device="cuda")
    return {"reserved_MiB": peak}


# Processes

@check()
def loader_with_workers_and_pinned_memory():
    import torch

    kept = torch.ones(1000, device="cuda")  # each worker ends with a copy
    data = torch.utils.data.TensorDataset(torch.arange(65536, dtype=torch.float32).view(4096, 16))
    total = 0.0
    for _ in range(2):
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=256, num_workers=3, pin_memory=True):
            total += batch.cuda(non_blocking=True).double().sum().item()
    expect(total == 65536 * 65535, total)
    expect(kept.sum().item() == 1000, "the parent's tensor has changed")


@check()
def fork_after_use():
    import torch

    x = torch.ones(1 << 20, device="cuda")
    before = torch.cuda.memory_allocated()
    pid = os.fork()
    if pid == 0:
        del x
        import gc

        gc.collect()
        os._exit(5)
    expect(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5, "the child did not end well")
    expect(torch.cuda.memory_allocated() == before and x.sum().item() == 1 << 20, "the parent's memory has changed")


@check()
def fork_before_use():
    import torch

    ask, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            x = torch.ones(1000, device="cuda")
            told = f"sum {x.sum().item()}, memory {torch.cuda.memory_allocated() >= 4000}"
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(tell, told.encode())
        os._exit(0)
    os.close(tell)
    with os.fdopen(ask) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    expect(told == "sum 1000.0, memory True", "the child:", told)
    expect(torch.ones(10, device="cuda").sum().item() == 10, "the parent did not work")


@check(on="alone")
def end_with_everything_held():
    done = program("""
        import atexit, torch
        torch.kept = [torch.ones(100000, device="cuda") for _ in range(100)]

        class Late:
            def __del__(self):
                self.x = None

        late = Late()
        late.x, late.me = torch.ones(10, device="cuda"), late
        with torch.cuda.stream(torch.cuda.Stream()):
            y = torch.ones(1000, device="cuda")
        torch.nn.Linear(10, 10).cuda()(torch.ones(1, 10, device="cuda")).sum().backward()
        atexit.register(lambda: torch.kept.pop())
    """)
    expect(done.returncode == 0 and not done.stderr, done.returncode, done.stderr[-500:])


@check(on="alone")
def launcher_and_what_it_starts():
    done = program("""
        import subprocess, sys
        import torch, torch.multiprocessing as mp

        def inner(rank, q):
            x = torch.ones(5, device="cuda")
            q.put(torch.cuda.get_allocator_backend() + str(torch.cuda.memory_allocated()))

        if __name__ == "__main__":
            print(torch.cuda.get_allocator_backend(), sys.argv[1:])
            q = mp.get_context("spawn").SimpleQueue()
            mp.spawn(inner, (q,), nprocs=1)
            print(q.get())
            ask = "import torch; torch.ones(1, device='cuda'); print(torch.cuda.get_allocator_backend())"
            print(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout.strip())
    """, "%s", "--lr", "1")
    lines = done.stdout.splitlines()
    expect(lines == ["pluggable ['--lr', '1']", "pluggable512", "pluggable"], lines, done.stderr[-1500:])


@check(on="alone")
def torchrun_data_parallel():
    import torch

    count = torch.cuda.device_count()
    done = program("""
        import os, torch, torch.distributed as dist

        rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda(), device_ids=[rank])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(20):
            model(torch.ones(8, 512, device="cuda") * (rank + 1)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.cuda.get_allocator_backend() == "pluggable"
        assert torch.cuda.memory_stats()["peer_access_bytes"] == 0, "a rank opened its memory"
        total = model.module.weight.detach().sum()
        everyone = [torch.empty_like(total) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, total)
        assert everyone[0] == everyone[-1]
        dist.destroy_process_group()
        print("rank done")
    """, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "%s")
    expect(done.returncode == 0 and done.stdout.count("rank done") == count, done.stdout[-300:], done.stderr[-2000:])
    return {"ranks": count}


# Errors

@check()
def out_of_memory():
    import torch

    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *what: seen.append(what))
    torch.cuda.set_per_process_memory_fraction(0.02)
    expect(torch.cuda.get_per_process_memory_fraction() == 0.02, torch.cuda.get_per_process_memory_fraction())
    held = torch.ones(1 << 20, device="cuda")
    error = raised(lambda: torch.empty(1 << 36, device="cuda"))
    expect(str(error).startswith("CUDA out of memory. Tried to allocate 256.00 GiB"), error)
    expect(isinstance(error, torch.cuda.OutOfMemoryError), "its type is", type(error))
    expect(len(seen) == 1 and seen[0][1] == 1 << 38, seen)
    inner = raised(lambda: held.repeat(1 << 14))
    expect(isinstance(inner, torch.cuda.OutOfMemoryError), type(inner))

    class Large(torch.autograd.Function):  # the engine carries the error from its own thread
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return torch.empty(1 << 36, device="cuda")

    x = torch.ones(1, device="cuda", requires_grad=True)
    later = raised(lambda: Large.apply(x).sum().backward())
    expect(isinstance(later, torch.cuda.OutOfMemoryError), type(later), later)
    expect(held.sum().item() == 1 << 20 and torch.cuda.memory_stats()["num_ooms"] >= 3, "works no more")
    torch.cuda.set_per_process_memory_fraction(1.0)
    return {"text": str(error)[:400]}


@check()
def refusals_name_what_they_refuse():
    import warnings

    import torch
    import weir.torch

    x = torch.ones(100, device="cuda")
    error = raised(x.untyped_storage()._share_cuda_)
    expect("CUDA IPC" in str(error), error)
    if weir.torch.is_native():
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.backends.cudnn.benchmark = True
    expect(any("cudnn.benchmark stays off" in str(w.message) for w in told), told)
    expect(not torch.backends.cudnn.benchmark, "cudnn.benchmark is on")
    torch.nn.Conv2d(8, 8, 3).cuda()(torch.randn(4, 8, 32, 32, device="cuda")).sum().item()
    expect((x + 1).sum().item() == 200, "works no more")


@check(on="alone")
def install_after_use_is_refused():
    done = child("-c", "import torch; torch.ones(1, device='cuda'); import weir.torch; weir.torch.install()")
    expect("comes too late" in done.stderr.splitlines()[-1], done.stderr[-500:])
    # the allocator can be used without torch.cuda's knowledge
    done = child("-c", "import torch, weir.torch; torch.cuda.init(); torch.cuda._initialized = False; "
                 "weir.torch.install()")
    expect("comes too late" in done.stderr.splitlines()[-1], done.stderr[-500:])


@check(on="alone")
def simulated_memory_is_refused():
    done = program("import torch; torch.ones(1, device='cuda')", WEIR_DEVICES="sim")
    expect("Unset WEIR_DEVICES" in done.stderr, done.stderr[-500:])


# Figures

@check(on="both")
def figures_have_pytorchs_keys():
    import torch

    x = torch.ones(1 << 20, device="cuda")
    keys = set(torch.cuda.memory_stats())
    expect(torch.cuda.memory_allocated() >= 1 << 22, torch.cuda.memory_allocated())
    expect(torch.cuda.max_memory_reserved() >= 1 << 22, torch.cuda.max_memory_reserved())
    expect("Allocated memory" in torch.cuda.memory_summary(abbreviated=True), "no summary")
    del x
    now = torch.cuda.memory_allocated()
    expect(torch.cuda.max_memory_allocated() > now, "no peak")
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    expect(torch.cuda.max_memory_allocated() == now, "the peak stays")
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "memory_allocated"):
        expect(torch.accelerator.memory_allocated() == now, torch.accelerator.memory_allocated())
        torch.accelerator.reset_peak_memory_stats()
    x = torch.ones(1 << 28, device="cuda")
    del x
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    expect(torch.cuda.memory_reserved() < 1 << 28, "nothing was given back")
    known = {k for k in keys if not k.startswith("reserved_bytes_by_private_pools")}
    return {"keys": sorted(known)}


@check()
def snapshots_and_history():
    import pickle

    import torch
    import weir.torch

    torch.cuda.memory._record_memory_history(max_entries=10000)
    model = torch.nn.Linear(1000, 1000).cuda()
    model(torch.ones(10, 1000, device="cuda")).sum().backward()
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as file:
            found = pickle.load(file)
        blocks = [b for s in found["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
        lines = {f["filename"] for b in blocks for f in b["frames"]}
        expect(any(name.endswith("check.py") for name in lines), lines)
        expect(weir.torch.is_native() or not any("/torch/nn/" in name for name in lines), lines)
        for command in ("trace_plot", "segment_plot"):
            done = child("-m", "torch.cuda._memory_viz", command, path, "-o", os.path.join(work, "out.html"))
            expect(done.returncode == 0, command, done.stderr[-500:])
    expect(torch.cuda.memory_snapshot(), "no segments")
    torch.cuda.memory._record_memory_history(None)
    expect("reserved" in weir.torch.summary() and weir.torch.report(), "no words")
    return {"lines": sorted(os.path.basename(n) for n in lines)}


@check()
def raw_blocks_and_zero_bytes():
    import torch

    raw = [torch.cuda.caching_allocator_alloc(0) for _ in range(10)] + [torch.cuda.caching_allocator_alloc(1000)]
    expect(len(set(raw)) == 11 and all(raw), raw)
    for p in raw:
        torch.cuda.caching_allocator_delete(p)
    empty = [torch.empty(0, device="cuda") for _ in range(100)]
    expect(all((e + 1).numel() == 0 for e in empty), "an empty tensor")
    small = [torch.empty(1, device="cuda") for _ in range(100)]
    expect(all(t.data_ptr() % 512 == 0 for t in small), "alignment")


# Devices and other libraries

@check()
def second_device():
    import torch

    if torch.cuda.device_count() < 2:
        raise NotHere("two GPUs")
    import programs

    x = torch.ones(1, device="cuda:0")  # PyTorch has no statistics before
    expect(torch.cuda.memory_stats(0)["peer_access_bytes"] == 0, "memory was open before a second device was used")
    found = programs.copies_to_second_device()
    back = torch.ones(1 << 20, device="cuda:1").to("cuda:0").sum().item()
    expect(back == 1 << 20 and x.item() == 1, back)
    return found


@check(on="alone")
def one_pool_with_cupy():
    try:
        import cupy  # noqa: F401
    except ImportError:
        raise NotHere("CuPy") from None
    found = {}
    for pool in ("one", "own"):
        done = child(os.path.join(here, "one_pool.py"), pool)
        expect(done.returncode == 0, done.stdout[-500:], done.stderr[-1500:])
        found[pool] = json.loads(done.stdout.splitlines()[-1])
    return found


@check(on="alone")
def per_thread_streams_of_cupy():
    try:
        import cupy  # noqa: F401
    except ImportError:
        raise NotHere("CuPy") from None
    done = child("-c", textwrap.dedent("""
        import threading
        import cupy, weir.cupy

        weir.cupy.install()
        right = []

        def work(n):
            for _ in range(200):
                x = cupy.full(1 << 20, n, dtype=cupy.float32)
                right.append(float((x * 2).sum()) == n << 21)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for act in (threading.Thread.start, threading.Thread.join):
            for thread in threads:
                act(thread)
        assert cupy.cuda.get_current_stream().ptr == 2
        assert len(right) == 800 and all(right), right.count(False)
        assert weir.cupy.memory_allocated() == 0, weir.cupy.memory_allocated()
    """), CUPY_CUDA_PER_THREAD_DEFAULT_STREAM="1")
    expect(done.returncode == 0 and not done.stderr, done.returncode, done.stderr[-1500:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
