"""The interface of the package torch_memory_saver, on weir: a program changes its import alone.

    from weir.torch.memory_saver import torch_memory_saver, configure_subprocess
"""
import contextlib

from weir.torch import Refused, _sleep


def _tag(tag, kept):
    return f"{tag} (kept)" if kept else tag


class TorchMemorySaver:
    """region(), pause() and resume(). Memory is weir's own, so that nothing is preloaded and no mode is chosen."""

    enabled = True
    hook_mode = memory_margin_bytes = None  # accepted: weir needs neither

    def __init__(self):
        self._kept = {}  # by tag: whether a region keeps its bytes, both if some do

    @contextlib.contextmanager
    def region(self, tag="default", enable_cpu_backup=False, enable_disk_backup=False, cpu_backup_backend=None):
        if enable_disk_backup or cpu_backup_backend == "mmap":
            raise Refused("weir-598: region(enable_disk_backup, cpu_backup_backend='mmap'): weir keeps bytes in pinned "
                          "host memory alone. Leave these out")
        with _sleep.region(_tag(tag, enable_cpu_backup)):
            self._kept.setdefault(tag, set()).add(bool(enable_cpu_backup))
            yield

    @contextlib.contextmanager
    def disable(self):
        """What is allocated inside belongs to no region."""
        with _sleep.region(self):  # a tag that no text equals
            yield

    def cuda_graph(self, *_, **__):
        raise Refused("weir-599: cuda_graph(): the memory of a graph neither moves nor sleeps on weir. Capture with "
                      "torch.cuda.graph(), and let what the graph reads and writes lie in a region")

    def _each(self, tag):
        for name in list(self._kept) if tag is None else [tag]:
            for kept in list(self._kept.get(name, ())):
                yield _tag(name, kept), kept

    def pause(self, tag=None):
        for name, kept in self._each(tag):
            _sleep.sleep(name, keep=kept)

    def resume(self, tag=None):
        for name, _ in self._each(tag):
            _sleep.wake(name)


torch_memory_saver = TorchMemorySaver()


@contextlib.contextmanager
def configure_subprocess():
    """Nothing is to be configured: a process that `python -m weir.torch` starts begins on weir."""
    yield
