# Python runs this file at the start of a process whose PYTHONPATH has its folder. `python -m weir.torch`
# sets that for the processes that its program starts. The sitecustomize that Python would have run
# otherwise runs, too.
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_others = [p for p in sys.path if os.path.abspath(p or ".") != _here]

if os.environ.get("WEIR_TORCH") == "1":
    try:
        import weir._startup  # noqa: F401
    except ImportError:  # not installed: this file lies in the package
        sys.path.append(os.path.dirname(os.path.dirname(_here)))
        import weir._startup  # noqa: F401


def _run_the_next():
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_run_the_next()
