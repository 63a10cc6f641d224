"""Keeps a backend's answers about networks of one layer, so that equal layers are tried once."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable

import onnx


class Trials:
    """A table of answers. Thread-safe: `_lock` guards the table, and the backend is asked outside
    the lock.

    Args:
        ask: says why the backend does not load a serialised network; None if it does.
        capacity: the most answers kept. The least recently used answer is dropped first.
    """

    def __init__(self, ask: Callable[[bytes], str | None], capacity: int = 4096) -> None:
        self._ask = ask
        self._capacity = capacity
        self._lock = threading.Lock()
        self._answers: OrderedDict[bytes, str | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def reason(self, network: onnx.ModelProto) -> str | None:
        """Why the backend does not load the network; None if it does."""
        data = network.SerializeToString(deterministic=True)
        key = hashlib.sha256(data).digest()
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        answer = self._ask(data)
        with self._lock:
            self._answers[key] = answer
            while len(self._answers) > self._capacity:
                self._answers.popitem(last=False)
        return answer
