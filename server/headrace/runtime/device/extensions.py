"""The operators that clients have given a device."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import onnx_ir as ir


class Extensions:
    """ONNX local functions by identifier. Thread-safe: `_lock` guards them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: list[ir.Function] = []

    def add(self, functions: Sequence[ir.Function]) -> None:
        """Adds functions. A new function replaces the earlier one with the same identifier."""
        keys = {function.identifier() for function in functions}
        with self._lock:
            kept = [known for known in self._functions if known.identifier() not in keys]
            self._functions = [*kept, *functions]

    def functions(self) -> list[ir.Function]:
        with self._lock:
            return list(self._functions)
