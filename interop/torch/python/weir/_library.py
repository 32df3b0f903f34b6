"""libweir_torch.so: where it is, and the types of its functions."""
import ctypes
import os

_here = os.path.dirname(os.path.abspath(__file__))
_name = "libweir_torch.so"
_loaded = None


class WeirError(RuntimeError):
    """What weir refused, in its own words: the operation, its operands, the remedy."""


def path():
    """WEIR_TORCH_LIBRARY, else the file beside this package, else the build of the repository that it lies in."""
    named = os.environ.get("WEIR_TORCH_LIBRARY")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(_here))))
    built = os.path.join(root, "build", "release", "interop", _name)
    places = [named] if named else [os.path.join(_here, _name), built]
    for place in places:
        if os.path.exists(place):
            return os.path.abspath(place)
    raise WeirError(f"weir-119: no {_name} at {' or '.join(places)}. Install the wheel (./run wheel makes it), build the "
                    "target weir_torch, or name the file in WEIR_TORCH_LIBRARY")


def load():
    """The library, once a process."""
    global _loaded
    if _loaded is None:
        lib = ctypes.CDLL(path())
        text, number, size, address = ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
        for name, result, *arguments in (
            ("version", text), ("error", text), ("has_own_error", number), ("simulated", number),
            ("stats", text, number), ("summary", text, number), ("report", text, number),
            ("reset_peak", number, number), ("reset_accumulated", number, number),
            ("get_fraction", ctypes.c_double, number), ("snapshot", number, text), ("page", number, text),
            ("record", number, size, number, text), ("stop_recording", number), ("name_lines", number, text),
            ("on_out_of_memory", None, address),
            ("allocate", address, size, number, address), ("deallocate", number, address),
            ("lend", number, address), ("hold_pool", None, number, ctypes.c_ulonglong, ctypes.c_ulonglong),
            ("holds_of_pool", number, number, ctypes.c_ulonglong, ctypes.c_ulonglong),
            ("begun_of_pool", number, number, ctypes.c_ulonglong, ctypes.c_ulonglong),
            ("sleep_pool", number, number, ctypes.c_ulonglong, ctypes.c_ulonglong, number),
            ("wake_pool", number, number, ctypes.c_ulonglong, ctypes.c_ulonglong),
            ("held", ctypes.c_int64, number),
        ):
            function = getattr(lib, "weir_torch_" + name)
            function.restype, function.argtypes = result, arguments
        _loaded = lib
    return _loaded


def hook(name):
    """The address of a function that another library calls."""
    return ctypes.cast(getattr(load(), "weir_torch_" + name), ctypes.c_void_p).value


def text(name, *arguments):
    answer = getattr(load(), "weir_torch_" + name)(*arguments)
    if answer is None:
        raise WeirError(load().weir_torch_error().decode(errors="replace"))
    return answer.decode(errors="replace")


def call(name, *arguments):
    if getattr(load(), "weir_torch_" + name)(*arguments) != 0:
        raise WeirError(load().weir_torch_error().decode(errors="replace"))
