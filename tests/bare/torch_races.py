#!/usr/bin/env python3
"""PyTorch programs with a missing order, for a race checker on a GPU.

Usage: torch_races.py NAME          the case as its comment says
       torch_races.py NAME right    the same with the order that is missing
       torch_races.py --list        the names, each with what a checker says of it
A checker says `race` where a kernel gets the block as a parameter of its own, and nothing orders a free or a copy
with it.
It says `possible` between two kernels, and where the pointers lie in a structure, as those of most operators do.
PyTorch's current stream is the legacy stream, and torch.cuda.Stream() makes non-blocking ones.
Exit status: 0 whatever the case does, 2 usage, 77 the machine lacks what the case needs.
"""
import sys

try:
    import torch
except ImportError:
    torch = None
try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

SKIPPED = 77
LATE = 2_000_000  # cycles that a stream is kept busy
cases = {}


def case(says):
    def add(function):
        cases[function.__name__] = (function, says)
        return function

    return add


def skip(why):
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(SKIPPED)


def block(value=1.0):
    return torch.full((256, 256), float(value), device="cuda")


def pinned(value=1.0):
    return torch.full((256, 256), float(value)).pin_memory()


def prepared():
    """A side stream and the current one. Nothing is under way on either."""
    torch.cuda.synchronize()
    return torch.cuda.Stream(), torch.cuda.current_stream()


def softmax(x, out=None):
    """A kernel that gets its two tensors as parameters of their own, and reads the one by a pointer to const."""
    return torch.softmax(x, -1, out=out)


def finish():
    """Before the tensors of a case are freed."""
    torch.cuda.synchronize()


# The block is freed while the side stream reads it: the next tensor of the current stream gets its memory.
@case("race")
def missing_record_stream(right):
    x = block()
    side, current = prepared()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE)
        y = softmax(x)
    if right:
        x.record_stream(side)
    del x
    z = block(5)
    finish()
    del y, z


# Each round's batch is freed when the next one is bound to the name; the compute stream still reads it.
@case("race")
def batch_replaced_without_a_record(right):
    host = pinned()
    side, current = prepared()
    for _ in range(3):
        batch = host.to("cuda", non_blocking=True)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            torch.cuda._sleep(LATE)
            y = softmax(batch)
        if right:
            batch.record_stream(side)
    finish()
    del y


# The side stream does not wait for the current one, which writes its input.
@case("possible")
def missing_wait_stream(right):
    x, a = block(), block()
    side, current = prepared()
    torch.cuda._sleep(LATE)
    softmax(a, out=x)
    if right:
        side.wait_stream(current)
    with torch.cuda.stream(side):
        y = softmax(x)
    finish()
    del y


# The upload is on the side stream, and its tensor is used without a wait for that stream.
@case("race")
def upload_used_early(right):
    host = pinned()
    side, current = prepared()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE)
        x = host.to("cuda", non_blocking=True)
    if right:
        current.wait_stream(side)
    y = softmax(x)
    finish()
    del y


# The prefetcher fills its one batch anew while the last step still reads it.
@case("race")
def prefetch_overwrites_the_batch(right):
    batch, host = block(), pinned()
    copies, current = prepared()
    for _ in range(3):
        with torch.cuda.stream(copies):
            batch.copy_(host, non_blocking=True)
        current.wait_stream(copies)
        torch.cuda._sleep(LATE)
        y = softmax(batch)
        if right:
            copies.wait_stream(current)
    finish()
    del y


# The event is recorded before the kernel that it stands for.
@case("race")
def event_recorded_too_early(right):
    x, a, host = block(), block(), pinned()
    side, current = prepared()
    event = torch.cuda.Event()
    if not right:
        event.record(current)
    torch.cuda._sleep(LATE)
    softmax(a, out=x)
    if right:
        event.record(current)
    side.wait_event(event)
    with torch.cuda.stream(side):
        host.copy_(x, non_blocking=True)
    finish()


# One pinned buffer serves an upload and, on another stream, the results: these may come first.
@case("race")
def pinned_buffer_overwritten_by_a_copy(right):
    x, results, host = block(), block(), pinned()
    side, current = prepared()
    torch.cuda._sleep(LATE)
    x.copy_(host, non_blocking=True)
    if right:
        side.wait_stream(current)
    with torch.cuda.stream(side):
        host.copy_(results, non_blocking=True)
    finish()


# The host fills the pinned buffer for the next batch while the upload of this one may still read it.
@case("race")
def pinned_buffer_refilled_by_the_host(right):
    x, host = block(), pinned()
    _, current = prepared()
    torch.cuda._sleep(LATE)
    x.copy_(host, non_blocking=True)
    if right:
        current.synchronize()
    host.fill_(2)
    finish()


# The result of a non-blocking copy to the host is read at once. No call of CUDA reads it: operators tell.
@case("race")
def host_reads_early(right):
    x = block()
    _, current = prepared()
    torch.cuda._sleep(LATE)
    host = x.to("cpu", non_blocking=True)
    if right:
        current.synchronize()
    print(host.sum().item())
    finish()


def captured(x):
    """A graph that reads x, and its output."""
    softmax(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = softmax(x)
    return graph, out


# The graph's static input gets the next batch while a replay may still read it.
@case("race")
def graph_beside_a_copy(right):
    x, host = block(), pinned()
    graph, out = captured(x)
    side, current = prepared()
    torch.cuda._sleep(LATE)
    graph.replay()
    if right:
        side.wait_stream(current)
    with torch.cuda.stream(side):
        x.copy_(host, non_blocking=True)
    finish()
    del out


# The graph is replayed without a wait for the stream that writes its input.
@case("possible")
def graph_beside_its_writer(right):
    x, a = block(), block()
    graph, out = captured(x)
    side, current = prepared()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE)
        softmax(a, out=x)
    if right:
        current.wait_stream(side)
    graph.replay()
    finish()
    del out


if triton:
    @triton.jit
    def double(x, n, size: tl.constexpr):
        at = tl.program_id(0) * size + tl.arange(0, size)
        tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


# A Triton kernel on the side stream, and a copy of its results on the current one.
@case("race")
def triton_beside_a_copy(right):
    if not triton:
        skip("no Triton")
    x, host = block(), pinned()
    double[(64,)](x, x.numel(), size=1024)
    side, current = prepared()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE)
        double[(64,)](x, x.numel(), size=1024)
    if right:
        current.wait_stream(side)
    host.copy_(x, non_blocking=True)
    finish()


# The communication stream still copies a gradient to its bucket when the optimizer's stream zeroes the gradient.
@case("possible")
def bucket_copied_beside_the_optimizer(right):
    weights = [torch.nn.Parameter(block()) for _ in range(4)]
    bucket = torch.empty(4, 256, 256, device="cuda")
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for w in weights:
        w.grad = block(0.5)
    side, current = prepared()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE)
        for part, w in zip(bucket, weights):
            part.copy_(w.grad)
    if right:
        current.wait_stream(side)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    finish()


# Two streams write their results to one tensor.
@case("possible")
def out_of_two_streams(right):
    a, b, out = block(), block(2), block()
    side, current = prepared()
    torch.cuda._sleep(LATE)
    softmax(a, out=out)
    if right:
        side.wait_stream(current)
    with torch.cuda.stream(side):
        softmax(b, out=out)
    finish()


def main(arguments):
    if arguments == ["--list"]:
        for name, (_, says) in cases.items():
            print(name, says)
        return 0
    if not arguments or arguments[0] not in cases or arguments[1:] not in ([], ["right"]):
        print(__doc__, file=sys.stderr)
        return 2
    if torch is None or not torch.cuda.is_available():
        skip("no PyTorch, or no GPU")
    cases[arguments[0]][0](len(arguments) == 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
