"""Stands for CuPy: the names that weir.cupy touches."""
import types


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size} bytes (allocated so far: {total} bytes).")


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


def _set_allocator(function):
    global allocator
    allocator = function


class Stream:
    def __init__(self, ptr):
        self.ptr = ptr


class ExternalStream(Stream):
    pass


allocator = None
stream = Stream(0)
cuda = types.SimpleNamespace(
    get_current_stream=lambda: stream, runtime=types.SimpleNamespace(getDevice=lambda: 0),
    set_allocator=_set_allocator, memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    MemoryPointer=MemoryPointer, Stream=Stream, ExternalStream=ExternalStream, UnownedMemory=UnownedMemory)
