#!/usr/bin/env python3
"""Programs of PyTorch on its own allocator, on its expandable segments and on weir: memory and time, as lines of JSON.

Usage: bench.py [--starts N] [--seconds S] [--only PROGRAM[,PROGRAM]]
3 starts, at most 330 s, and gpt2,prefetch,gather,pairs by default. Each start is a process of its own; the allocators
take turns. `later_ms` is the median of a start's steps after the third, `peak_reserved` the most bytes that the
allocator held. The last lines have the medians over the starts.
  gpt2, prefetch, gather   see programs.py
  pairs                    raw_alloc and raw_delete by PyTorch's own functions; a call of Python takes `call_ns`.
                           The allocator floor is malloc as a pluggable one: nothing on PyTorch's table is quicker
  FILE.py                  a program of tools/peers/programs: the turns of its steps() are its steps. `device_ms` is
                           the sum of the times of kernels and copies a turn, by the profiler in 7 more turns. It has
                           no waits, and the host does not disturb it
  ddp, peer                need two GPUs: data-parallel training of two models, by rank; copies of 256 MiB to cuda:1
"""
import argparse
import itertools
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time

here = os.path.dirname(os.path.abspath(__file__))
allocators = ("native", "expandable", "weir")
steps = {"gpt2": 13, "prefetch": 23, "gather": 23}
most_turns, profiled_turns = 23, 7  # of a FILE.py: turns differ in length, so every allocator gets the same ones


def begin(allocator):
    if allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    sys.path[:0] = [here, os.path.join(here, "python")]
    import torch

    if allocator == "weir":
        import weir.torch

        weir.torch.install()
    if allocator == "floor":
        memory = torch.cuda.memory
        memory.change_current_allocator(memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free"))
    return torch


def one(program, allocator):
    torch = begin(allocator)
    import random

    if program == "pairs":
        return pairs(torch)
    if program == "peer":
        import programs

        return programs.copies_to_second_device()
    torch.manual_seed(0)
    random.seed(0)
    times, stats = [], {}

    def timed(turns):
        torch.cuda.synchronize()
        last = time.perf_counter()
        try:
            for turn in turns:
                yield turn
                torch.cuda.synchronize()
                now = time.perf_counter()
                times.append((now - last) * 1e3)
                last = now
        finally:  # a program may leave its loop earlier
            stats.update(torch.cuda.memory_stats())

    device_ms = {}

    def profiled(turns):
        count = 0
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            for turn in turns:
                yield turn
                count += 1
            torch.cuda.synchronize()
        if count:
            total_us = sum(each.self_device_time_total for each in seen.key_averages())
            device_ms["device_ms"] = round(total_us / 1e3 / count, 3)

    if program.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
        os.environ["STEP_FACTOR"] = "20"  # so that no limit by seconds ends it
        import parts

        of_program = parts.steps

        def steps_of(*how):
            turns = iter(of_program(*how))
            yield from timed(itertools.islice(turns, most_turns))
            yield from profiled(itertools.islice(turns, profiled_turns))

        parts.steps = steps_of
        runpy.run_path(program, run_name="__main__")
        if len(times) < 5:
            raise SystemExit(f"{program} has {len(times)} turns of parts.steps(): time it as a whole")
    else:
        import programs

        for _ in timed(getattr(programs, program)(steps[program])):
            pass
    later = sorted(times[3:])
    found = {"later_ms": round(statistics.median(later), 3), "least_ms": round(later[0], 3),
             "most_ms": round(later[-1], 3), "first_ms": round(times[0], 1), "turns": len(times),
             "peak_reserved": stats["reserved_bytes.all.peak"], "peak_requested": stats["requested_bytes.all.peak"]}
    found |= device_ms
    if allocator == "weir":
        found |= {key: stats[key] for key in ("fences", "waits_inserted", "num_device_alloc", "num_alloc_retries")}
    else:
        found |= {"num_alloc_retries": stats["num_alloc_retries"]}
    return found


def pairs(torch):
    torch.cuda.init()
    stream = torch.cuda.current_stream().cuda_stream
    alloc, delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete

    def ns(act, count=100000):
        for _ in range(1000):
            act()
        taken = []
        for _ in range(5):
            began = time.perf_counter_ns()
            for _ in range(count):
                act()
            taken.append((time.perf_counter_ns() - began) / count)
        return round(min(taken), 1)

    found = {"call_ns": ns(torch._C._cuda_getDevice)}
    for size, name in ((512, "512"), (65536, "64K"), (8 << 20, "8M")):
        found[f"pair_{name}_ns"] = ns(lambda: delete(alloc(size, stream)))
    found["empty_512_ns"] = ns(lambda: torch.empty(128, device="cuda"))
    held = [torch.empty(1 + i % 500, device="cuda") for i in range(5000)]  # PyTorch's table is not empty in programs
    found["pair_512_among_5000_ns"] = ns(lambda: delete(alloc(512, stream)))
    del held
    return found


def rank(allocator, out):
    """One process of ddp. The first writes its step times."""
    torch = begin(allocator)
    import torch.distributed as dist
    from torch import nn

    mine = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(mine)
    torch.backends.cuda.matmul.allow_tf32 = True
    dist.init_process_group("nccl")
    found = {}
    for width, batch, name in ((4096, 2048, "large_ms"), (1024, 1024, "small_ms")):
        layers = [layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())]
        model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[mine],
                                                    gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, fused=True)
        x, y = (torch.randn(batch, width, device="cuda") for _ in range(2))
        rounds = []
        for _ in range(7):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(20):
                optimizer.zero_grad(set_to_none=True)
                (model(x) - y).square().mean().backward()
                optimizer.step()
            torch.cuda.synchronize()
            rounds.append((time.perf_counter() - began) / 20 * 1e3)
        found[name] = round(statistics.median(rounds[2:]), 3)
    dist.destroy_process_group()
    if mine == 0:
        with open(out, "w") as file:
            json.dump(found, file)


def ddp(allocator):
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, "out.json")
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                        os.path.abspath(__file__), "--rank", allocator, out], check=True, stdout=sys.stderr)
        with open(out) as file:
            return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--only", default="gpt2,prefetch,gather,pairs")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank:
        rank(*chosen.rank)
        return 0
    if chosen.one:
        print(json.dumps(ddp(chosen.one[1]) if chosen.one[0] == "ddp" else one(*chosen.one)), flush=True)
        return 0
    began, all_runs, failed = time.monotonic(), {}, 0
    for start in range(chosen.starts):
        for program in chosen.only.split(","):
            for allocator in allocators + ("floor",) * (program == "pairs"):
                left = chosen.seconds - (time.monotonic() - began)
                if left < 15:
                    print(json.dumps({"stopped": f"{chosen.seconds} s are over", "start": start, "program": program}),
                          flush=True)
                    failed |= start == 0
                    break
                said = {"program": program, "allocator": allocator, "start": start}
                try:
                    found = subprocess.run([sys.executable, os.path.abspath(__file__), "--one", program, allocator],
                                           capture_output=True, text=True, timeout=min(left, 90))
                except subprocess.TimeoutExpired as error:
                    failed = 1
                    print(json.dumps(said | {"error": f"not done after {error.timeout:.0f} s"}), flush=True)
                    continue
                lines = [line for line in found.stdout.splitlines() if line.startswith("{")]
                if found.returncode or not lines:
                    failed = 1
                    print(json.dumps(said | {"error": found.stderr[-1500:]}), flush=True)
                    continue
                said |= json.loads(lines[-1])
                all_runs.setdefault((program, allocator), []).append(said)
                print(json.dumps(said), flush=True)
            else:
                continue
            break
        else:
            continue
        break
    for program in chosen.only.split(","):
        medians = {}
        for allocator in allocators + ("floor",) * (program == "pairs"):
            runs = all_runs.get((program, allocator), [])
            keys = [k for k, v in (runs[0] if runs else {}).items()
                    if isinstance(v, (int, float)) and k != "start" and all(k in r for r in runs)]
            medians[allocator] = {k: statistics.median(r[k] for r in runs) for k in keys} | {"starts": len(runs)}
        line = {"median": program, **medians}
        for key in ("later_ms", "device_ms"):
            theirs = [medians[a][key] for a in allocators[:2] if key in medians[a]]
            if theirs and key in medians["weir"]:
                line[f"{key}_weir_to_the_better"] = round(medians["weir"][key] / min(theirs), 4)
        for allocator in ("weir", "floor") * (program == "pairs"):
            mine, native = medians[allocator], medians["native"]
            if mine["starts"] and native["starts"]:
                line[allocator + "_to_native"] = {
                    k: round((mine[k] - mine["call_ns"]) / (native[k] - native["call_ns"]), 3)
                    for k in native if k.startswith("pair")}
        print(json.dumps(line), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
