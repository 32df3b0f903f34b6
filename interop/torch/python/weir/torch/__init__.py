"""PyTorch on weir.

    python -m weir.torch train.py ARGS      a program as it is, and the processes that it starts
    import torch, weir.torch; weir.torch.install()      before the first use of CUDA

docs/how-to/pytorch.md says what works, what is refused, and what the figures of torch.cuda mean then.
"""
import os
import sys
import warnings

from weir import _library
from weir._library import WeirError

__all__ = ["Refused", "RefusedWarning", "WeirError", "can_install", "install", "is_installed", "is_native", "region",
           "report", "save_page", "sleep", "stats", "summary", "wake"]

_allocator = None  # PyTorch calls it until the process ends


class Refused(RuntimeError):
    """PyTorch has no hook for it, or weir cannot do it yet. The text names it and says what to do instead."""


class RefusedWarning(UserWarning):
    """A request that changes speed only has no effect on weir."""


def is_installed():
    return _allocator is not None


def is_native():
    """Whether weir is PyTorch's own allocator (WEIR_TORCH_NATIVE=1), which answers what the plug cannot be asked."""
    from weir.torch import _native

    return _allocator is _native


def can_install():
    """Whether this PyTorch is one for CUDA, whose allocator can be replaced."""
    import torch

    return bool(getattr(torch.version, "cuda", None)) and hasattr(torch._C, "_cuda_customAllocator")


_too_late = ("weir-124: weir.torch.install() comes too late: PyTorch has used CUDA already, and its allocator cannot be replaced "
             "then. Call it directly after `import torch`, or start the program with `python -m weir.torch`")


def _install_native(torch):
    """Where WEIR_TORCH_NATIVE=1 asks for it, the allocator that is compiled against PyTorch's headers. Else None."""
    if os.environ.get("WEIR_TORCH_NATIVE", "0") in ("", "0"):
        return None
    from weir.torch import _native

    try:
        _native.install(torch, _library.path())
    except _native.CannotBuild as why:
        warnings.warn(f"{why}. weir serves by PyTorch's plug for allocators instead", RefusedWarning, stacklevel=3)
        return None
    except RuntimeError as error:
        raise Refused(f"{_too_late} ({error})") from None
    return _native


def _install_plug(torch):
    memory = torch.cuda.memory
    allocator = memory.CUDAPluggableAllocator(_library.path(), "weir_torch_alloc", "weir_torch_free")
    hooks = allocator.allocator() if hasattr(allocator, "allocator") else allocator._allocator
    for setter, name in (("set_init_fn", "init"), ("set_reset_fn", "reset"),
                         ("set_memory_fraction_fn", "set_fraction"), ("set_base_alloc_fn", "base_alloc"),
                         ("set_record_stream_fn", "record_stream")):
        if not hasattr(hooks, setter):
            raise Refused(f"weir-126: weir.torch.install(): PyTorch {torch.__version__} has no {setter}. Install 2.6 or newer")
        getattr(hooks, setter)(_library.hook(name))
    for setter, name in (("set_begin_allocate_to_pool", "begin_pool"),
                         ("set_end_allocate_to_pool_fn", "end_pool"), ("set_release_pool", "release_pool")):
        if hasattr(hooks, setter):
            getattr(hooks, setter)(_library.hook(name))
    try:
        memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise Refused(f"{_too_late} ({error})") from None
    return allocator


def install():
    """Makes weir the allocator of this process's PyTorch. A second call does nothing.

    Raises Refused: PyTorch is not built for CUDA, or has used it already. Raises WeirError: the library is not found.
    """
    global _allocator
    if _allocator is not None:
        return
    import torch

    if not can_install():
        raise Refused(f"weir-125: weir.torch.install(): PyTorch {torch.__version__} is not built for CUDA. Install one "
                      "that is")
    if torch.cuda.is_initialized():
        raise Refused(_too_late)
    _allocator = _install_native(torch) or _install_plug(torch)
    if os.environ.get("WEIR_CHECK_RACES", "0") not in ("", "0"):
        own = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
        _library.call("name_lines", own.encode())

    from weir.torch import _figures, _pools, _refusals, _streams

    _streams.put_into(torch)
    _pools.put_into(torch, is_native())
    _refusals.put_into(torch, is_native())
    if not is_native():
        _figures.put_into(torch)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if os.environ.get(name):
            warnings.warn(f"weir-120: {name}={os.environ[name]} has no effect on weir, whose options are in WEIR_CONF "
                          "(docs/reference/options.md)", RefusedWarning, stacklevel=2)


def _index(device):
    torch = sys.modules["torch"]
    return torch.cuda._utils._get_device_index(device, optional=True)


def summary(device=None):
    """weir's own table of a device's memory: reserved = allocated + pending + cached, and whose each is."""
    return _library.text("summary", _index(device))


def stats(device=None):
    """weir's figures under torch's keys and its own, nested as torch.cuda.memory_stats_as_nested_dict()."""
    from weir.torch import _figures

    return _figures.stats(_index(device))


def report(device=None):
    """Where a device's memory is, in the words of an error that is out of memory, with its remedies."""
    return _library.text("report", _index(device))


def save_page(path):
    """Writes a page that a browser opens without a network: memory over time, and its layout at any time.

    torch.cuda.memory._record_memory_history() begins the recording.
    """
    _library.call("page", os.fspath(path).encode())


from weir.torch._sleep import region, sleep, wake  # noqa: E402  (they need Refused)
