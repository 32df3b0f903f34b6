"""What weir as PyTorch's own allocator must do: a part of the checks that check.py runs, with WEIR_TORCH_NATIVE=1."""
from checking import NotHere, check, expect


def _native():
    import torch
    import weir.torch

    if not weir.torch.is_native():
        raise NotHere("WEIR_TORCH_NATIVE=1, a compiler and PyTorch's headers")
    return torch


@check()
def native_allocator_answers_pytorch():
    torch = _native()
    expect(torch.cuda.get_allocator_backend() == "weir", torch.cuda.get_allocator_backend())
    before = torch.cuda.memory_allocated()
    empty, x = torch.empty(0, device="cuda"), torch.ones(1000, device="cuda")
    expect(torch.cuda.memory_allocated() == before + 4096, torch.cuda.memory_allocated() - before)
    del empty, x
    expect(torch.cuda.memory_allocated() == before, "a block stays")
    torch.backends.cudnn.benchmark = True
    expect(torch.backends.cudnn.benchmark, "cudnn.benchmark stays off")
    images = torch.randn(8, 16, 64, 64, device="cuda")
    expect(torch.nn.Conv2d(16, 32, 3).cuda()(images).isfinite().all().item(), "wrong values")


@check()
def native_profiler_sees_memory():
    torch = _native()
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as seen:
        kept = torch.ones(1 << 20, device="cuda")
        del kept
    taken = [getattr(e, "self_device_memory_usage", 0) for e in seen.key_averages()]
    expect(any(n >= 1 << 22 for n in taken), taken)


@check()
def native_history_has_contexts():
    torch = _native()
    memory = torch.cuda.memory
    memory._record_memory_history(max_entries=10000, stacks="python")
    x = torch.ones(1 << 20, device="cuda")
    address = x.data_ptr()
    del x
    events = [e for e in memory._snapshot()["device_traces"][0] if e["addr"] == address]
    memory._record_memory_history(None)
    expect([e["action"] for e in events] == ["alloc", "free_requested", "free_completed"], events)
    expect(all(any(f["filename"].endswith("native_checks.py") for f in e["frames"]) for e in events), events)


# A forward and a backward pass, then another function of the same trees, then the first again.
@check()
def native_graph_trees_have_the_same_bits():
    torch = _native()
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
    plain = [p.detach().clone() for p in model.parameters()]
    compiled = torch.compile(model, mode="reduce-overhead")
    other = torch.compile(lambda t: (t * 2).relu() + 1, mode="reduce-overhead")
    for i in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.full((64, 256), 0.01 * i, device="cuda")
        out = compiled(x)
        out.sum().backward()
        again = other(x)
        expect(torch.equal(again, (x * 2).relu() + 1), f"step {i}: the second function")
        grads = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        for ours, theirs in zip(grads, model.parameters()):
            expect(torch.allclose(ours, theirs.grad, rtol=1e-4, atol=1e-5), f"step {i}: a gradient")
        model.zero_grad()
    expect(all(torch.equal(a, b) for a, b in zip(plain, model.parameters())), "the parameters changed")
    from torch._inductor.cudagraph_trees import get_container

    expect(get_container(0).tree_manager is not None, "no trees were made")


@check()
def native_pools_answer():
    torch = _native()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(1 << 20, device="cuda")
    expect(pool.use_count() == 1, pool.use_count())
    live = sum(b["size"] for s in pool.snapshot() for b in s["blocks"] if b["state"] == "active_allocated")
    expect(live == 1 << 22, live)
    del x, pool


@check()
def regions_sleep_and_wake():
    import torch
    import weir.torch

    with weir.torch.region("weights"):
        kept = torch.arange(1 << 22, device="cuda")
    with weir.torch.region("cache"):
        dropped = torch.ones(1 << 24, device="cuda")
    at, held = kept.data_ptr(), torch.cuda.memory_reserved()
    weir.torch.sleep("weights")
    weir.torch.sleep("cache", keep=False)
    expect(torch.cuda.memory_reserved() <= held - (96 << 20), held - torch.cuda.memory_reserved())
    weir.torch.wake()
    expect(kept.data_ptr() == at and torch.equal(kept.cpu(), torch.arange(1 << 22)), "other bytes")
    expect(dropped.fill_(3).sum().item() == 3 << 24, "no memory")
