"""Memory that sleeps: tensors of a region give their memory to the device and take it back at the same addresses."""
import contextlib
import sys
import threading

from weir import _library
from weir.torch import Refused

_pools = {}  # (tag, device) of each region: its pool, for good
_making = threading.Lock()


def _torch():
    from weir import torch as door

    if not door.is_installed():
        raise Refused("weir-596: weir.torch.region(): weir is not PyTorch's allocator here. Call weir.torch.install() "
                      "first")
    torch = sys.modules["torch"]
    if not hasattr(torch.cuda, "MemPool"):
        raise Refused(f"weir-602: weir.torch.region(): PyTorch {torch.__version__} has no torch.cuda.MemPool. Install "
                      "a newer one")
    return torch


@contextlib.contextmanager
def region(tag="default"):
    """What this thread allocates inside, on the current device, sleeps and wakes by its tag.

    Regions of one tag share their memory. Tensors of a captured graph take none of it.
    """
    torch = _torch()
    key = tag, torch.cuda.current_device()
    with _making:
        if key not in _pools:
            _pools[key] = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(_pools[key]):
        yield


def _of(tag):
    found = [(device, pool) for (name, device), pool in list(_pools.items()) if tag is None or name == tag]
    if tag is not None and not found:
        names = ", ".join(sorted({name for name, _ in list(_pools)})) or "none"
        raise Refused(f"weir-597: no region {tag!r} was entered. Those of this process: {names}")
    return found


def sleep(tag=None, keep=True):
    """Gives the memory of a tag's regions (None: of all) to the device. Its tensors keep their addresses until wake().

    keep: writes the bytes to pinned host memory; False drops them. No effect on what sleeps already. Until wake(),
    tensors of the region can be freed, and no other use of them is right.
    Blocks: until the work on that memory is complete. Raises WeirError: a graph uses it, or the host has no memory;
    what slept before then sleeps on.
    """
    for device, pool in _of(tag):
        _library.call("sleep_pool", device, *pool.id, int(bool(keep)))


def wake(tag=None):
    """Brings the memory back at the same addresses, with its bytes if they were kept. Blocks: until they are there.

    Raises WeirError: the device has no room; what is not awake then sleeps on, whole.
    """
    for device, pool in _of(tag):
        _library.call("wake_pool", device, *pool.id)
