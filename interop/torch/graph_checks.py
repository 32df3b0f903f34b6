"""What captures, graphs and pools of PyTorch on weir must do: a part of the checks that check.py runs."""
from checking import bits_of, check, expect, raised


def _step(torch, model, x, target):
    loss = torch.nn.functional.mse_loss(model(x), target)
    loss.backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.01)
        p.grad = None
    return loss


# The backward threads allocate too; what they allocate is the graph's, and what is freed inside serves again inside.
@check(on="both")
def captured_training_has_the_same_bits():
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 64)).cuda()
    x, target = torch.randn(128, 512, device="cuda"), torch.randn(128, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            _step(torch, model, x, target)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = _step(torch, model, x, target)
    held = torch.cuda.memory_reserved()
    for i in range(300):
        x.copy_(torch.randn(128, 512, device="cuda"))
        others = [torch.full((1 + i % 50, 10_000), 7.0, device="cuda") for _ in range(5)]
        graph.replay()
        expect(all(o.mean().item() == 7 for o in others) if i % 50 == 0 else True, "a launch wrote into another block")
    expect(torch.cuda.memory_reserved() < held + (64 << 20), "memory grew by launches")
    return bits_of(loss, *model.parameters())


@check()
def graphs_of_one_pool_share_memory():
    import torch

    def layer(x):
        for _ in range(6):
            x = torch.relu(x @ x) / 100 + 1
        return x.sum(dim=1)

    inputs = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()

    def capture(pool):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = layer(inputs)
        return graph, out

    layer(inputs)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.graph_pool_handle()
    all_graphs = [capture(pool)]
    one = torch.cuda.memory_reserved() - before
    all_graphs += [capture(pool) for _ in range(7)]
    eight = torch.cuda.memory_reserved() - before
    expect(eight <= 1.05 * one + (2 << 20), f"eight graphs hold {eight} B, one {one} B")
    wanted = layer(inputs)
    for graph, out in all_graphs:
        graph.replay()
        expect(torch.equal(out, wanted), "a graph's output differs")
    del all_graphs, graph, out
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    after = torch.cuda.memory_reserved() - before
    expect(after < one / 2, f"{after} B stay after the graphs are gone")
    return {"one": one, "eight": eight}


# A graph goes while its last launch runs; blocks from before that are freed inside stay with it.
@check()
def graph_memory_lives_as_long_as_its_launches():
    import gc

    import torch

    seen = torch.zeros(1, device="cuda")
    before = torch.full((1 << 20,), 3.0, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        held = torch.full((1 << 20,), 5.0, device="cuda")
        side.synchronize()
        with torch.cuda.graph(graph, stream=side):
            torch.cuda._sleep(20_000_000)
            temporary = before * 2 + held
            seen.copy_(temporary.mean().reshape(1))
            del temporary, held
    for _ in range(3):
        graph.replay()
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.full((1 << 20,), 9.0, device="cuda") for _ in range(50)]
    torch.cuda.synchronize()
    expect(seen.item() == 11, seen.item())
    expect(all(o.mean().item() == 9 for o in others), "a launch wrote into a block of another")


@check()
def a_failed_capture_leaves_everything_usable():
    import torch

    x = torch.ones(1 << 20, device="cuda")
    reserved = torch.cuda.memory_reserved()

    def capture():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            y = torch.empty(1 << 26, device="cuda")
            (y[: 1 << 20] + x).sum().item()  # not allowed inside

    for _ in range(3):
        expect(raised(capture) is not None, "the capture was not refused")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    expect(torch.cuda.memory_reserved() <= reserved + (8 << 20), torch.cuda.memory_reserved() - reserved)
    expect((x + 1).sum().item() == 2 << 20, "works no more")


@check()
def other_threads_allocate_during_a_capture():
    import threading

    import torch

    x = torch.ones(1 << 18, device="cuda")
    stop, failed = threading.Event(), []

    def work():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not stop.is_set():
                y = torch.full((1 << 16,), 2.0, device="cuda")
                if (y * 2).sum().item() != 4 << 16:
                    failed.append("wrong bytes")

    for mode in ("thread_local", "relaxed"):
        stop.clear()
        threads = [threading.Thread(target=work) for _ in range(2)]
        for t in threads:
            t.start()
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode=mode):
                y = x
                for _ in range(20):
                    y = y * 1.5 + 1
            graph.replay()
        stop.set()
        for t in threads:
            t.join()
    wanted = x
    for _ in range(20):
        wanted = wanted * 1.5 + 1
    expect(torch.equal(y, wanted) and not failed, failed)


@check()
def compiled_functions_with_graphs():
    import torch

    f = torch.compile(lambda t: (t.sin() + 1).relu() * t, mode="reduce-overhead")
    for i in range(20):
        x = torch.full((1000, 100), float(i), device="cuda")
        expect(torch.allclose(f(x), (x.sin() + 1).relu() * x), f"call {i}")
    model = torch.nn.Linear(256, 256).cuda()
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(64, 256, device="cuda", requires_grad=True),))
    x = torch.randn(64, 256, device="cuda", requires_grad=True)
    graphed(x).sum().backward()
    expect(x.grad is not None and torch.isfinite(x.grad).all().item(), "no gradient")


@check()
def pools_serve_what_is_inside():
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(1 << 20, device="cuda")
    outside = torch.ones(1 << 20, device="cuda")
    expect((inside + outside).sum().item() == 2 << 20, "wrong bytes")
    expect(inside.data_ptr() >> 21 != outside.data_ptr() >> 21, "a block from outside lies in the pool's page")
    del inside, pool
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
