"""Gives back the memory that ONNX Runtime keeps after large requests.

A session's arena keeps what its tensors have used, for later runs. Replies are tensors of the arena
until their callers have read them. So after 60 callers who did not read replies of 10 MB, the arena
has 600 MB that nobody uses. A run can have the arena give back what no tensor uses.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

import numpy as np

from headrace.plugins.cpu.backend.session import OnnxRuntimeSession
from headrace.runtime.execution.job import Job
from headrace.runtime.execution.timer import Timer
from headrace.runtime.network.values import Array, Value

_LARGE_BYTES: Final = 2**20
"""Values of fewer bytes do not count."""
_WORTH_BYTES: Final = 32 * 2**20
"""The memory of so many bytes that nobody uses any more is given back. The next run then needs some
milliseconds to get as much again."""
_SECONDS: Final = 1.0


class Arena:
    """Looks each second, while there is something to give back. Thread-safe: `_lock` guards the
    fields below it. `Timer`'s lock is taken under it.

    Args:
        sessions: those of one network.
    """

    def __init__(self, timer: Timer, sessions: Sequence[OnnxRuntimeSession]) -> None:
        self._timer = timer
        self._sessions = sessions
        self._lock = threading.Lock()
        self._replies: list[tuple[weakref.ref[object], int]] = []
        self._most = 0  # the most bytes in use since the arena was shrunk
        self._looks = self._closed = False

    def shrink(self) -> None:
        """Gives back what no tensor uses. For 600 MB it takes half a second."""
        for session in self._sessions:
            session.shrink()

    def used(self, job: Job) -> None:
        """Notes what a job has used that has just run."""
        for array in chain(job.inputs.values(), job.outputs.values()):
            if isinstance(array, np.ndarray) and array.nbytes >= _LARGE_BYTES:
                break
        else:  # as most do, so nothing is made for them
            return
        given, made = _large(job.inputs), _large(job.outputs)
        with self._lock:
            self._replies += [(weakref.ref(array), array.nbytes) for array in made]
            self._most = max(self._most, self._in_use() + sum(array.nbytes for array in given))
            self._look_later()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._sessions = ()

    def _in_use(self) -> int:
        self._replies = [reply for reply in self._replies if reply[0]() is not None]
        return sum(size for _, size in self._replies)

    def _look_later(self) -> None:
        if not self._looks and not self._closed:
            self._looks = True
            self._timer.schedule(time.monotonic() + _SECONDS, self._look, _SECONDS / 4)

    def _look(self) -> None:
        with self._lock:
            self._looks = False
            most, self._most = self._most, self._in_use()
            if self._closed:
                return
            worth = most - self._most >= _WORTH_BYTES
            if not worth:
                self._most = most
            if self._replies:
                self._look_later()
        if worth:
            try:
                threading.Thread(target=self.shrink, name="headrace-shrink", daemon=True).start()
            except RuntimeError:  # the system has no thread now
                with self._lock:
                    self._most = max(self._most, most)
                    self._look_later()


def _large(values: Mapping[str, Value]) -> list[Array]:
    return [
        value
        for value in values.values()
        if isinstance(value, np.ndarray) and value.nbytes >= _LARGE_BYTES
    ]
