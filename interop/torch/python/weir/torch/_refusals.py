"""What cannot work on a pluggable allocator, refused by name at its entry instead of from deep inside."""
import warnings

from weir.torch import Refused, RefusedWarning

_ipc = ("PyTorch opens an allocation of cudaMalloc to another process, and weir maps its memory otherwise. Send "
        "x.cpu(), share host memory, or use weir's own sharing (weir/share.h)")
_benchmark = ("weir-121: torch.backends.cudnn.benchmark stays off. cuDNN's search asks for the largest free block, which "
              "PyTorch does not ask of a pluggable allocator; cuDNN's own choice of algorithms serves instead")


def _refuse(name, why):
    def refused(*_, **__):
        raise Refused(f"weir-122: {name}: {why}")

    return refused


def _refuse_benchmark(set_it):
    def refused(wanted, *_, **__):
        if wanted:
            warnings.warn(_benchmark, RefusedWarning, stacklevel=3)
        set_it(False)

    return refused


def put_into(torch, is_native):
    torch.UntypedStorage._share_cuda_ = _refuse("a CUDA tensor for another process (CUDA IPC)", _ipc)
    torch.UntypedStorage._new_shared_cuda = staticmethod(_refuse("a CUDA tensor of another process (CUDA IPC)", _ipc))

    if is_native:
        return  # it tells cuDNN's search how much there is
    # The property of torch.backends.cudnn keeps the function that it was made with; cudnn.flags() asks
    # torch._C.
    torch._C._set_cudnn_benchmark = _refuse_benchmark(torch._C._set_cudnn_benchmark)
    module = type(torch.backends.cudnn)
    if isinstance(vars(module).get("benchmark"), torch.backends.ContextProp):
        module.benchmark = torch.backends.ContextProp(torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark)
    if torch._C._get_cudnn_benchmark():
        torch._C._set_cudnn_benchmark(True)
