"""Runs a PyTorch program on weir, unchanged.

Usage: python -m weir.torch [OPTIONS] PROGRAM.py [ARGS...]
       python -m weir.torch [OPTIONS] -m MODULE [ARGS...]   as -m torch.distributed.run --nproc-per-node 2 train.py

The program and the processes that it starts take their device memory from weir. WEIR_CONF and weir's other variables
(docs/reference/options.md) apply. Exit status: the program's own; 2: wrong use; 66: --check reported a race.

Options:
  --check            reports races: uses of memory on two streams that nothing orders
                     (docs/how-to/check-a-cuda-program.md)
  --suppress FILE    kernels and blocks that these reports leave out
"""
import os
import runpy
import sys


def _prepare():
    """PyTorch here, and in the processes that are started from here, begins on weir."""
    os.environ["WEIR_TORCH"] = "1"
    start = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_start")
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if start not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([start, *paths])
    import weir._startup  # noqa: F401


def _options(arguments):
    """Takes this module's options from the front. Returns: the rest, or None after a wrong one."""
    rest = list(arguments)
    while rest and rest[0] in ("--check", "--suppress"):
        option = rest.pop(0)
        if option == "--check":
            os.environ["WEIR_CHECK_RACES"] = "fail"
        elif rest:
            os.environ["WEIR_CHECK_SUPPRESS"] = os.path.abspath(rest.pop(0))
        else:
            print(f"weir.torch: --suppress needs a file\n{__doc__}", file=sys.stderr)
            return None
    return rest


def main(arguments):
    arguments = _options(arguments)
    if arguments is None:
        return 2
    if not arguments or arguments[0] in ("-h", "--help") or (arguments[0] == "-m" and len(arguments) < 2):
        print(__doc__, file=sys.stdout if arguments and arguments[0] in ("-h", "--help") else sys.stderr)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    if arguments[0].startswith("-") and arguments[0] != "-m":
        print(f"weir.torch: no option {arguments[0]}; options of Python come before -m weir.torch\n{__doc__}",
              file=sys.stderr)
        return 2
    _prepare()
    if arguments[0] == "-m":  # sys.path[0] is the current folder already, as for any module
        sys.argv = [arguments[1], *arguments[2:]]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        program = arguments[0]
        sys.argv = [program, *arguments[1:]]
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.path.dirname(os.path.abspath(program))
        runpy.run_path(program, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
