"""What torch.cuda tells of its memory, from weir's books.

The functions of torch.cuda.memory call functions of torch._C, which a pluggable allocator does not answer. Those are
replaced: every name of torch.cuda and torch.accelerator, also one that a module has imported already, tells weir's
figures then.
"""
import ctypes
import os
import pickle
import tempfile

from weir import _library

_most_events = 1 << 20  # of the history; 80 B of host memory each
_observers = []         # the program's, of allocations that fail
_observer_type = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)


def stats(device):
    """torch._C._cuda_memoryStats: nested dicts with torch's keys, and weir's own beside them."""
    nested = {}
    for line in _library.text("stats", device).splitlines():
        key, value = line.split("\t")
        *outer, last = key.split(".")
        at = nested
        for name in outer:
            at = at.setdefault(name, {})
        at[last] = int(value)
    return nested


def snapshot(asked=None):
    """torch._C._cuda_memorySnapshot(None), of a pool (id, id), or (id, id, with traces)."""
    pool, traces = (asked[:2], asked[2] if len(asked) > 2 else True) if asked else ((0, 0), True)
    handle, path = tempfile.mkstemp(prefix="weir-snapshot-")
    os.close(handle)
    try:
        _library.call("snapshot", path.encode())
        with open(path, "rb") as file:
            found = pickle.load(file)
    finally:
        os.unlink(path)
    if tuple(pool) != (0, 0):  # weir's snapshot has no ids of PyTorch's pools
        found["segments"] = []
    if not traces:
        found["device_traces"] = [[] for _ in found["device_traces"]]
    return found


def record(enabled="all", context="all", stacks="all", max_entries=_most_events, *_, **__):
    """torch._C._cuda_record_memory_history. A block gets the innermost line of the program; with context=None, none."""
    if enabled is None:
        return _library.call("stop_recording")
    import torch

    events = max(1, min(int(max_entries), _most_events))
    own = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
    _library.call("record", events, 0, own.encode() if context else None)


def record_legacy(enabled=True, record_context=True, max_entries=1, *_, **__):
    record("all" if enabled else None, max_entries=max(int(max_entries), 1 << 16))


def _tell_observers(device, asked, allocated, free):
    for observer in list(_observers):
        observer(device, asked, allocated, free)


_observing = _observer_type(_tell_observers)


def observe_out_of_memory(observer):
    """torch._C._cuda_attach_out_of_memory_observer: called with (device, bytes asked, allocated, free)."""
    _observers.append(observer)
    _library.load().weir_torch_on_out_of_memory(ctypes.cast(_observing, ctypes.c_void_p))


def put_into(torch):
    fraction = _library.load().weir_torch_get_fraction
    answers = {
        "_cuda_memoryStats": stats,
        "_cuda_resetPeakMemoryStats": lambda device: _library.call("reset_peak", device),
        "_cuda_resetAccumulatedMemoryStats": lambda device: _library.call("reset_accumulated", device),
        "_cuda_memorySnapshot": snapshot,
        "_cuda_record_memory_history": record,
        "_cuda_record_memory_history_legacy": record_legacy,
        "_cuda_getMemoryFraction": lambda device: fraction(device),
        "_cuda_attach_out_of_memory_observer": observe_out_of_memory,
        "_accelerator_getDeviceStats": stats,
        "_accelerator_resetPeakStats": lambda device: _library.call("reset_peak", device),
        "_accelerator_resetAccumulatedStats": lambda device: _library.call("reset_accumulated", device),
    }
    for name, answer in answers.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, answer)
