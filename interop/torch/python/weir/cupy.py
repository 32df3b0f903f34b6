"""CuPy on weir's pool: memory that PyTorch frees serves CuPy, and the other way.

    import weir.cupy; weir.cupy.install()       makes it CuPy's allocator
    with cupy.cuda.using_allocator(weir.cupy.allocate): ...

A block belongs to the stream that is CuPy's current one when it is allocated: after its free, that stream's next
work may use the memory at once. Wait for work of other streams on it before the free, as with CuPy's own pool.
"""
from weir import _library


class _Block:
    """Owns one block of weir."""

    __slots__ = ("address",)

    def __init__(self, address):
        self.address = address

    def __del__(self, free=_library.load().weir_torch_deallocate):  # bound here: a module may be gone at the end
        if self.address:
            free(self.address)
            self.address = None


def allocate(size):
    """cupy.cuda.set_allocator's function. Raises cupy.cuda.memory.OutOfMemoryError with weir's report."""
    import cupy

    lib = _library.load()
    device = cupy.cuda.runtime.getDevice()
    address = lib.weir_torch_allocate(size, device, int(cupy.cuda.get_current_stream().ptr))
    if address is None:
        text = lib.weir_torch_error().decode(errors="replace")
        if "out of memory" not in text:
            raise _library.WeirError(text)
        error = cupy.cuda.memory.OutOfMemoryError(size, 0)
        error.args = (text,)
        raise error
    block = _Block(address)
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, block, device), 0)


def memory_allocated(device=None):
    """Bytes of the device that CuPy holds; the rest of torch.cuda.memory_allocated(device) is PyTorch's."""
    if device is None:
        import cupy

        device = cupy.cuda.runtime.getDevice()
    return _library.load().weir_torch_held(int(device))


def install():
    """Makes weir CuPy's allocator. Memory that CuPy holds already stays with its own pool until it is freed."""
    import cupy

    cupy.cuda.set_allocator(allocate)
