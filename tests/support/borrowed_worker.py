"""A worker process that many tests use, one after another: starting one takes most of a second."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.ipc.pool import SegmentPool
from headrace.runtime.isolation.server.lanes import Lanes
from headrace.runtime.isolation.server.process import WorkerProcess
from headrace.runtime.isolation.server.workers import Launch


class _Borrowed(WorkerProcess):
    """The lender's process and connection; lanes, shared memory and an end of its own."""

    def __init__(self, lender: WorkerProcess) -> None:
        self.__dict__.update(lender.__dict__)
        self.ended = threading.Event()
        self.pool = SegmentPool(self.numbers)
        self.lanes = Lanes(self.connect)

    def stop(self) -> None:
        """Gives the process back as it was, without a device."""
        self.call("close")
        self.lanes.close()
        self.pool.close()
        self.ended.set()

    def join(self) -> None:
        """Waits until it is given back. The process goes on."""
        self.ended.wait()


@contextmanager
def worker_to_borrow() -> Iterator[Launch]:
    """What a `WorkerHost` may launch again and again, one at a time."""
    lender = WorkerProcess("BORROWED")
    lender.call("close")  # so that its thread has what it opens before a test counts
    try:
        yield lambda device: _Borrowed(lender)
    finally:
        lender.stop()
