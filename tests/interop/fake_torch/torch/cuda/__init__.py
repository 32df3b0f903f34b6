"""Stands for torch.cuda."""
from . import graphs, memory
from .memory import MemPool, memory_allocated, memory_stats  # noqa: F401

_initialized = False


def is_initialized():
    return _initialized


def init():
    global _initialized
    _initialized = True


class _utils:
    @staticmethod
    def _get_device_index(device, optional=False):
        return int(device or 0)


graph, CUDAGraph = graphs.graph, graphs.CUDAGraph
