"""Stands for torch.cuda.memory: asks torch._C at each call, as PyTorch's does."""
import ctypes
import pickle

import torch


class CUDAPluggableAllocator:
    def __init__(self, path, alloc, free):
        library = ctypes.CDLL(path)
        addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in (alloc, free)]
        self._allocator = torch._C._cuda_customAllocator(*addresses)

    def allocator(self):
        return self._allocator


def change_current_allocator(allocator):
    if torch._Allocator.current is not None:
        raise RuntimeError("Can't swap an already initialized allocator")
    torch._Allocator.current = allocator.allocator()


class MemPool:
    pass


def memory_stats(device=None):
    flat = {}

    def spread(prefix, value):
        if isinstance(value, dict):
            for key, inner in value.items():
                spread(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    spread("", torch._C._cuda_memoryStats(int(device or 0)))
    return flat


def memory_allocated(device=None):
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def _record_memory_history(enabled="all", context="all", stacks="all", max_entries=1 << 62):
    torch._C._cuda_record_memory_history(enabled, context, stacks, max_entries, False, False, False, [])


def _dump_snapshot(path):
    with open(path, "wb") as file:
        pickle.dump(torch._C._cuda_memorySnapshot(None), file)
