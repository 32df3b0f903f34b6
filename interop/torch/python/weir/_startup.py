"""Puts PyTorch on weir when a program imports it. Importing this module is what does it.

PyTorch is not imported here: a program that never does pays nothing, and what a program sets before its `import torch`
(CUDA_VISIBLE_DEVICES, thread counts) counts as ever.
"""
import importlib.abc
import importlib.util
import sys


class _ThenInstall(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader  # what asks the module later meets its own loader
        self._loader.exec_module(module)
        _install()


class _WhenTorchIsImported(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenInstall(spec.loader)
        return spec


def _install():
    import weir.torch

    if weir.torch.can_install():
        weir.torch.install()


if "torch" in sys.modules:
    _install()
elif not any(isinstance(f, _WhenTorchIsImported) for f in sys.meta_path):
    sys.meta_path.insert(0, _WhenTorchIsImported())
