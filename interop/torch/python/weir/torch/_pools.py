"""torch.cuda.MemPool on weir, and graphs as torch.compile captures them."""
from weir import _library
from weir.torch import Refused


class MemPool:
    """torch.cuda.MemPool: a pool of weir's, entered with torch.cuda.use_mem_pool()."""

    def __init__(self, allocator=None, use_on_oom=False, no_split=False, **_):
        import torch

        if allocator is not None:
            raise Refused("weir-428: torch.cuda.MemPool(allocator): weir is the allocator of every pool. Leave it out")
        self._device = torch.cuda.current_device()
        self._id = torch.cuda.graph_pool_handle()
        self._release = torch._C._cuda_releasePool  # which the end of the interpreter takes away
        _library.load().weir_torch_hold_pool(self._device, *self._id)

    @property
    def id(self):
        return self._id

    @property
    def device(self):
        return self._device

    @property
    def allocator(self):
        return None

    def __del__(self):
        if hasattr(self, "_id"):
            self._release(self._device, self._id)


def _without_trees(torch):
    """torch.compile's graph trees save and restore the allocator's state, which PyTorch asks of its own alone."""
    compile_it = torch.compile

    def compile_without_trees(*arguments, **options):
        try:
            import torch._inductor.config as config

            config.triton.cudagraph_trees = False
        except (ImportError, AttributeError):  # a PyTorch without inductor
            pass
        return compile_it(*arguments, **options)

    torch.compile = compile_without_trees


def _end_failed_captures(torch):
    """PyTorch leaves the pool of a capture that fails entered, and holds it until the process ends."""
    graph = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end
    library = _library.load()

    def counts(device, pool):
        return library.weir_torch_begun_of_pool(device, *pool), library.weir_torch_holds_of_pool(device, *pool)

    def capture_begin(self, pool=None, *arguments, **options):
        self._pool_of_weir = torch.cuda.current_device(), pool or torch.cuda.graph_pool_handle()
        self._counts_before = counts(*self._pool_of_weir)
        return begin(self, self._pool_of_weir[1], *arguments, **options)

    def capture_end(self):
        try:
            return end(self)
        except Exception:
            # How far it came differs by release: what it has not given back goes now.
            entered, held = (now - was for now, was in zip(counts(*self._pool_of_weir), self._counts_before))
            for _ in range(entered):
                torch._C._cuda_endAllocateToPool(*self._pool_of_weir)
            for _ in range(held):
                torch._C._cuda_releasePool(*self._pool_of_weir)
            raise

    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def put_into(torch, is_native):
    if hasattr(torch.cuda.memory, "MemPool") and not is_native:
        torch.cuda.MemPool = torch.cuda.memory.MemPool = MemPool
    if hasattr(torch.cuda, "CUDAGraph"):
        _end_failed_captures(torch)
    if hasattr(torch, "compile") and not is_native:
        _without_trees(torch)
