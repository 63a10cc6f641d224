"""Imports a library without the modules that it imports but seldom uses.

onnx-ir imports SymPy for the arithmetic of symbolic dimensions. SymPy takes 34 MB of memory and
half a second of every start, and most servers never compute with a symbolic dimension.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Late(ModuleType):
    """Stands for a module that is imported when something of it is used. Thread-safe, because an
    import is."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks for these itself
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def import_without(library: str, *late: str) -> None:
    """Imports a library whose modules get stand-ins for the modules `late`.

    Does nothing if the library or one of these modules has been imported already.
    """
    if not sys.modules.keys().isdisjoint((library, *late)):
        return
    stand_ins = {name: _Late(name) for name in late}
    sys.modules.update(stand_ins)
    try:
        importlib.import_module(library)
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
