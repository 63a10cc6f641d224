"""Gives back the memory that ONNX Runtime keeps after large requests.

A session's arena keeps what its tensors have used, for later runs. Replies are tensors of the arena
until their callers have read them. So after 60 callers who did not read replies of 10 MB, the arena
has 600 MB that nobody uses. A run can have the arena give back what no tensor uses. Values between
layers are such tensors, too, so a network that has had no request for a while gives memory back.

One arena for all sessions of the process would take less while networks are in use in turns. But
all sessions wait while it gives memory back: 0.1 to 0.7 s for 640 MB.
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
_IDLE_SECONDS: Final = 60.0
"""Once in this time at most, a request has to get the memory again that its network gave back."""


class Arena:
    """Looks each second, while there is something to give back, and each minute, while there are
    requests. Thread-safe: `_lock` guards the fields below it. `Timer`'s lock is taken under it.

    Args:
        sessions: those of one network, or the one that several networks share. Their networks keep
            them.
    """

    def __init__(self, timer: Timer, sessions: Sequence[weakref.ref[OnnxRuntimeSession]]) -> None:
        self._timer = timer
        self._sessions = sessions
        self._lock = threading.Lock()
        self._replies: list[tuple[weakref.ref[object], int]] = []
        self._most = 0  # the most bytes in use since the arena was shrunk
        self._looks = False
        self._ran = self._waits = False  # `used` reads and writes them without the lock

    def shrink(self) -> None:
        """Gives back what no tensor uses. For 600 MB it takes half a second."""
        for each in self._sessions:
            if (session := each()) is not None:
                session.shrink()

    def used(self, job: Job) -> None:
        """Notes what a job has used that has just run."""
        self._ran = True
        if not self._waits:  # read after `_ran` is written, so that `_look_idle` sees one of them
            with self._lock:
                self._wait()
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

    def _in_use(self) -> int:
        self._replies = [reply for reply in self._replies if reply[0]() is not None]
        return sum(size for _, size in self._replies)

    def _look_later(self) -> None:
        if not self._looks:
            self._looks = True
            self._timer.schedule(time.monotonic() + _SECONDS, self._look, _SECONDS / 4)

    def _look(self) -> None:
        with self._lock:
            self._looks = False
            most, self._most = self._most, self._in_use()
            worth = most - self._most >= _WORTH_BYTES
            if not worth:
                self._most = most
            if self._replies:
                self._look_later()
        if worth and not self._begin_shrink():
            with self._lock:
                self._most = max(self._most, most)
                self._look_later()

    def _wait(self) -> None:
        if not self._waits:
            self._waits = True
            self._timer.schedule(time.monotonic() + _IDLE_SECONDS, self._look_idle, _SECONDS)

    def _look_idle(self) -> None:
        with self._lock:
            self._waits = False
            ran, self._ran = self._ran, False
            if ran:
                self._wait()
                return
        if not self._begin_shrink():
            with self._lock:
                self._wait()

    def _begin_shrink(self) -> bool:
        """Shrinks on a thread; False if the system has no thread now."""
        try:
            threading.Thread(target=self.shrink, name="headrace-shrink", daemon=True).start()
        except RuntimeError:
            return False
        return True


def _large(values: Mapping[str, Value]) -> list[Array]:
    return [
        value
        for value in values.values()
        if isinstance(value, np.ndarray) and value.nbytes >= _LARGE_BYTES
    ]
