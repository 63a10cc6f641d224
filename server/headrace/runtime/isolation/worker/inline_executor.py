"""A worker's executors, which run a task at once: the server has the queue and the streams."""

from __future__ import annotations

import itertools
import threading
from typing import Final

from headrace.runtime.execution.executor_manager import ExecutorManager
from headrace.runtime.execution.fair_queue import Entry, Flow
from headrace.runtime.execution.inline_budget import InlineBudget
from headrace.runtime.execution.stream import ExecutionStream, Task
from headrace.runtime.execution.streams_executor import StreamsExecutor

_STREAM: Final = ExecutionStream(0)


class InlineExecutor(StreamsExecutor):
    """Runs each task on the thread that submits it, and starts no threads. Thread-safe.

    Args:
        name, streams: as `StreamsExecutor`.
        bind: pin each thread that submits a task to one processor.
    """

    def __init__(self, name: str, streams: int, *, bind: bool = False) -> None:
        self._bound = threading.local()
        self._threads = itertools.count()
        super().__init__(name, streams, bind=bind)

    def inline_budget(self, *, safe: bool) -> InlineBudget:  # noqa: ARG002
        """Always: this thread has nothing else to do."""
        return InlineBudget.unlimited()

    def enter(self, flow: Flow[Task]) -> ExecutionStream:  # noqa: ARG002
        """Any thread may run a task at any time."""
        if self._bind and not hasattr(self._bound, "done"):
            self._bound.done = True
            self._bind_thread(next(self._threads))
        return _STREAM

    def leave(self, stream: ExecutionStream, flow: Flow[Task]) -> None:
        """Does nothing, because there is no thread that waits for work."""

    def submit(self, flow: Flow[Task], task: Task, *, inline: bool = False) -> None:  # noqa: ARG002
        self._run(self.enter(flow), task)

    def remove(self, entry: Entry[Task]) -> bool:  # noqa: ARG002 - nothing ever waits
        return False

    def set_limit(self, flow: Flow[Task], limit: int) -> None:
        flow.limit = limit

    def resize(self, streams: int) -> None:
        self._target = streams

    def stop(self, timeout: float | None = None) -> None:
        """Does nothing, because there is no thread to end."""


class InlineExecutors(ExecutorManager):
    """Inline executors by name."""

    def _make(self, name: str, streams: int, bind: bool) -> StreamsExecutor:
        return InlineExecutor(name, streams, bind=bind)
