"""Stands for PyTorch: the names that weir.torch touches, and what PyTorch does with them, without a GPU.

FAKE_TORCH_CUDA=none: a PyTorch that is not built for CUDA.
"""
import ctypes
import os
import types

__version__ = "2.11.0+fake"
version = types.SimpleNamespace(cuda=None if os.environ.get("FAKE_TORCH_CUDA") == "none" else "13.0")


def _unanswered(name):
    def call(*_):
        raise RuntimeError(f"CUDAPluggableAllocator does not yet support {name}")

    return call


_C = types.ModuleType("torch._C")
for _name in ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats",
              "_cuda_memorySnapshot", "_cuda_record_memory_history", "_cuda_record_memory_history_legacy",
              "_cuda_getMemoryFraction", "_cuda_attach_out_of_memory_observer", "_accelerator_getDeviceStats"):
    setattr(_C, _name, _unanswered(_name))
_released = []
_ended = []
_C._cuda_endAllocateToPool = lambda device, pool: _ended.append((device, pool))
_C._cuda_releasePool = lambda device, pool: _released.append((device, pool))
_benchmark = [False]
_C._get_cudnn_benchmark = lambda: _benchmark[0]
_C._set_cudnn_benchmark = lambda on: _benchmark.__setitem__(0, on)


class _Allocator:
    """torch._C._cuda_CUDAAllocator: remembers its hooks."""

    current = None

    def __init__(self, alloc, free):
        self.alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(alloc)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(free)
        self.hooks = {}

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda address: self.hooks.__setitem__(name, address)


if version.cuda:
    _C._cuda_customAllocator = _Allocator


class UntypedStorage:
    """A block of the current allocator."""

    def __init__(self, size):
        cuda.init()
        self.size = size
        self.address = _Allocator.current.alloc(size, 0, None)

    def __del__(self):
        _Allocator.current.free(self.address, self.size, 0, None)

    def _share_cuda_(self):
        return "a handle"


from . import backends, cuda  # noqa: E402
