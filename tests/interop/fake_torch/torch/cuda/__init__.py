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


class Stream:
    def __new__(cls, stream_ptr=0, **_):
        stream = object.__new__(cls)
        stream.cuda_stream = stream_ptr
        return stream


class ExternalStream(Stream):
    def __new__(cls, stream_ptr, device=None, **kwargs):
        return super().__new__(cls, stream_ptr=stream_ptr, **kwargs)


def current_device():
    return 0


def graph_pool_handle():
    return (7, 0)


graph, CUDAGraph = graphs.graph, graphs.CUDAGraph
