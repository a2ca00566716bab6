"""Stands in the place of SGLang's compiled kernels, whose CPU build is not in the package registry.

Importing from it works and calling does not: on a CPU without AMX SGLang calls torch's own
operators.
"""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.4.10"


class _Absent:
    """A name of the real module, as far as importing and decorating need it."""

    def __init__(self, name):
        self.__name__ = name

    def __call__(self, *_, **__):
        raise NotImplementedError(f"{self.__name__} is compiled code, which is not here")

    def __getattr__(self, name):
        return _absent(f"{self.__name__}.{name}", name)


def _absent(path, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(path)


def __getattr__(name):
    return _absent(f"{__name__}.{name}", name)


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below this one; each is as absent as its names."""

    def find_spec(self, name, path=None, target=None):
        if name.startswith(__name__ + "."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: _absent(f"{spec.name}.{name}", name)
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(_Submodules())
