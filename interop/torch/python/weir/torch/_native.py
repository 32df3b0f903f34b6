"""weir as PyTorch's own allocator: a library that is compiled against the headers of the installed PyTorch.

PyTorch's plug for allocators asks for blocks alone. Its own interface also asks for statistics, snapshots, histories,
pools and settings, by a class whose layout changes with each release. The library is compiled at the first install(),
into a folder of the user's, and found there by later processes.

Usage: python _native.py FOLDER...     prints the compiler's flags for the headers in these folders
"""
import contextlib
import ctypes
import fcntl
import glob
import hashlib
import os
import re
import shlex
import subprocess
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_sources = os.path.join(_here, "native")
# Releases whose interface the sources know. In 2.5 and 2.6 the native allocator alone can serve MemPool(allocator).
_releases = ("2.4", "2.7", "2.8", "2.9", "2.10", "2.11")
_headers = ("c10/cuda/CUDACachingAllocator.h", "c10/core/CachingDeviceAllocator.h", "c10/core/Allocator.h")

# What the sources ask of a release, and the text of its headers that says so.
_features = (
    ("DEVICE_ALLOCATOR", r"class CUDAAllocator : public DeviceAllocator"),
    ("MEMORY_FRACTION", r"virtual double getMemoryFraction\("),
    ("EXPANDABLE_SIZES", r"virtual std::vector<StreamSegmentSize> getExpandableSegmentSizes\("),
    ("ENABLE", r"virtual bool isEnabled\(\) const"),
    ("EMPTY_CACHE_OF_POOL", r"virtual void emptyCache\(MempoolId_t"),
    ("SNAPSHOT_OF_POOL", r"virtual SnapshotInfo snapshot\(\s*MempoolId_t"),
    ("SNAPSHOT_WITH_TRACES", r"virtual SnapshotInfo snapshot\(\s*MempoolId_t[^)]*,\s*bool"),
    ("POOL_COUNTS", r"virtual int getPoolUseCount\("),
    ("CREATE_POOL", r"virtual void createOrIncrefPool\("),
    ("CREATE_POOL_BY_POINTER", r"virtual void createOrIncrefPool\([^)]*CUDAAllocator\s*\*"),
    ("ENSURE_POOL", r"virtual void ensureExistsAndIncrefPool\("),
    ("USE_ON_OOM", r"virtual void setUseOnOOM\("),
    ("USE_ON_OOM_FLAG", r"virtual void setUseOnOOM\([^)]*bool"),
    ("NO_SPLIT", r"virtual void setNoSplit\("),
    ("SHARE_IPC", r"virtual ShareableHandle shareIpcHandle\("),
    ("HISTORY_CLEARS", r"virtual void recordHistory\([^)]*bool clearHistory"),
    ("SKIP_ACTIONS", r"virtual void recordHistory\([^)]*skip_actions"),
    ("ANNOTATIONS", r"virtual void recordAnnotation\(\s*const std::vector<std::pair<std::string, std::string>>&"),
    ("COMPILE_CONTEXT", r"virtual void pushCompileContext\("),
    ("COMPILE_CONTEXT_IN_TRACE", r"std::string compile_context = "),
    ("USER_METADATA", r"virtual void setUserMetadata\("),
    ("MEMPOOL_IN_TRACE", r"size_t size,\s*(?:cudaStream_t|void\*) stream,\s*MempoolId_t mempool,"),
    ("COPY_DATA", r"virtual void copy_data\("),
)


class CannotBuild(RuntimeError):
    """Why the library is not made; PyTorch's plug serves instead."""


def _texts(includes):
    """The headers that say what a release's interface is, joined."""
    found = ""
    for name in _headers:
        for folder in includes:
            path = os.path.join(folder, name)
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    found += file.read()
                break
    if "class CUDAAllocator" not in found:
        raise CannotBuild("weir-587: no header c10/cuda/CUDACachingAllocator.h with the class CUDAAllocator in "
                          f"{', '.join(includes)}")
    return found


def flags(includes):
    """The definitions for the headers of one release. Raises CannotBuild: they are not in these folders."""
    found = _texts(includes)
    return [f"-DWEIR_HAS_{name}" for name, text in _features if re.search(text, found)]


def _cuda_headers(torch):
    """The folder of cuda_runtime_api.h: the toolkit's, or that of the packages that PyTorch needs."""
    site = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"))
    places = [os.path.join(home, "include") for home in homes if home]
    places += glob.glob(os.path.join(site, "nvidia", "*", "include")) + ["/usr/local/cuda/include"]
    for place in places:
        if os.path.exists(os.path.join(place, "cuda_runtime_api.h")):
            return place
    raise CannotBuild(f"weir-588: no cuda_runtime_api.h in {places}: install the CUDA toolkit, or set CUDA_HOME")


def _loaded(name):
    """The path of a library that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            path = line.split(maxsplit=5)[-1].strip()
            if os.path.basename(path).startswith(name):
                return path
    raise CannotBuild(f"weir-589: PyTorch has no {name} loaded")


def _root(torch):
    return os.path.dirname(os.path.abspath(torch.__file__))


def _command(torch, target):
    root = _root(torch)
    includes = [os.path.join(root, "include"), _cuda_headers(torch)]
    abi = int(bool(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True)))
    return [*shlex.split(os.environ.get("CXX", "c++")), "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden",
            f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *flags(includes), *[f"-isystem{folder}" for folder in includes],
            os.path.join(_sources, "allocator.cpp"), "-o", target,
            os.path.join(root, "lib", "libc10.so"), os.path.join(root, "lib", "libc10_cuda.so"),
            _loaded("libcudart.so")]


def _folder():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("WEIR_TORCH_CACHE") or os.path.join(cache, "weir")


@contextlib.contextmanager
def _alone(path):
    """Holds a lock that other processes see; it goes with the process."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(torch):
    """Of all that the library depends on."""
    digest = hashlib.sha256("\0".join(_command(torch, "")).encode())
    digest.update(_texts([os.path.join(_root(torch), "include")]).encode())
    for name in ("libc10.so", "libc10_cuda.so"):
        with contextlib.suppress(FileNotFoundError):
            about = os.stat(os.path.join(_root(torch), "lib", name))
            digest.update(f"{about.st_size} {about.st_mtime_ns}".encode())
    for name in sorted(os.listdir(_sources)):
        with open(os.path.join(_sources, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def _require_own(path):
    """Raises CannotBuild: another user can write what this process would load."""
    about = os.stat(path)
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise CannotBuild(f"weir-600: {path} belongs to another user, or others may write it. Name a folder of your "
                          "own in WEIR_TORCH_CACHE")


def _compile(command, path, unfinished):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotBuild(f"weir-591: no compiler: {error}") from None
    try:
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:300])
            raise CannotBuild(f"weir-592: the compiler refuses the sources: {first}")
        os.chmod(unfinished, 0o755)
        os.rename(unfinished, path)  # whole or not at all
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)


def _build(torch):
    folder = _folder()
    os.makedirs(folder, mode=0o700, exist_ok=True)
    _require_own(folder)
    path = os.path.join(folder, f"libweir_native-torch{torch.__version__}-{_digest(torch)}.so")
    if not os.path.exists(path):
        with _alone(path + ".lock"):
            if not os.path.exists(path):  # no other process made it meanwhile
                unfinished = f"{path}.{os.getpid()}"
                _compile(_command(torch, unfinished), path, unfinished)
    _require_own(path)
    return path


def build(torch):
    """Compiles the library, once for each PyTorch, ABI and text of the sources. Returns: its path.

    Blocks: while the compiler runs, here or in another process. Raises CannotBuild.
    """
    if ".".join(torch.__version__.split("+")[0].split(".")[:2]) not in _releases:
        raise CannotBuild(f"weir-590: PyTorch {torch.__version__} is none of {', '.join(_releases)}")
    try:
        return _build(torch)
    except OSError as error:
        raise CannotBuild(f"weir-601: the library cannot be kept: {error}. Name a folder in WEIR_TORCH_CACHE") from None


def install(torch, door):
    """Makes the library PyTorch's allocator. door: the path of libweir_torch.so.

    Raises CannotBuild: nothing has changed then. Raises RuntimeError: PyTorch has used CUDA already.
    """
    path = build(torch)
    ctypes.CDLL(door, mode=ctypes.RTLD_GLOBAL)  # the library asks for its functions by name
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise CannotBuild(f"weir-593: {path} does not load: {error}") from None
    library.weir_torch_native_install.restype = ctypes.c_char_p
    too_late = library.weir_torch_native_install()
    if too_late:
        raise RuntimeError(too_late.decode())


if __name__ == "__main__":
    print(" ".join(flags(sys.argv[1:])))
