"""Streams of other libraries, which end before the program does."""
from weir import _library


def put_into(torch):
    """A stream behind torch.cuda.ExternalStream may end: weir uses it only in calls that name it."""
    external, lend = torch.cuda.ExternalStream, _library.load().weir_torch_lend
    make = external.__new__

    def new(cls, stream_ptr, *arguments, **named):
        lend(stream_ptr)
        return make(cls, stream_ptr, *arguments, **named)

    external.__new__ = staticmethod(new)
