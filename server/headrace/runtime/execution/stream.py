"""A stream of a device: a place to run one task, with a thread."""

from __future__ import annotations

import threading
from typing import Protocol, TypeAlias

from headrace.runtime.execution.fair_queue import Entry, Flow


class Task(Protocol):
    """What a stream runs. `run` settles its job itself. If it raises anything, that is a bug, and
    `fail` is called. `fail` does not raise.

    `dispatch` may start the task elsewhere, and returns whether it has. It never waits, and does
    not raise. A task that was dispatched gives the stream back with `leave` when it has run.

    Attributes:
        entry: the queue entry, if the task has to wait. It is set under the executor's lock.
    """

    entry: Entry[Task] | None

    @property
    def priority(self) -> int: ...
    def dispatch(self, stream: ExecutionStream) -> bool: ...
    def run(self, stream: int) -> None: ...
    def fail(self, error: BaseException) -> None: ...


Work: TypeAlias = "tuple[Flow[Task], Task]"


class ExecutionStream:
    """A place to run one task, with its thread. The executor's lock guards all but `wake`.

    `wake` is a lock used as a binary semaphore. It is released once for each task that is handed to
    a parked thread.
    """

    __slots__ = ("index", "retired", "thread", "wake", "work")

    def __init__(self, index: int) -> None:
        self.index = index
        self.retired = False
        self.work: Work | None = None
        self.thread: threading.Thread | None = None
        self.wake = threading.Lock()
        self.wake.acquire()
