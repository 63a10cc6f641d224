"""A thread that reads what other processes send, as a server's event loop does."""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ThreadReaders:
    """`Readers` with a thread of its own.

    Attributes:
        thread: the thread that calls the readers.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._added: deque[tuple[int, Callable[[], None]]] = deque()
        self._wake, self._woken = os.pipe()
        self._ending = False
        self._selector.register(self._wake, selectors.EVENT_READ, self._register)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def add(self, descriptor: int, readable: Callable[[], None]) -> bool:
        self._added.append((descriptor, readable))
        os.write(self._woken, b"x")
        return True

    def remove(self, descriptor: int) -> None:
        assert threading.current_thread() is self.thread
        self._selector.unregister(descriptor)

    def close(self) -> None:
        """Ends the thread once it reads nothing any more."""
        self._ending = True
        os.write(self._woken, b"x")
        self.thread.join()
        self._selector.close()
        os.close(self._wake)
        os.close(self._woken)

    def _register(self) -> None:
        os.read(self._wake, 1)
        while self._added:
            descriptor, readable = self._added.popleft()
            self._selector.register(descriptor, selectors.EVENT_READ, readable)

    def _run(self) -> None:
        while not self._ending or self._added or len(self._selector.get_map()) > 1:
            for key, _ in self._selector.select():
                key.data()


@contextmanager
def thread_readers() -> Iterator[ThreadReaders]:
    readers = ThreadReaders()
    try:
        yield readers
    finally:
        readers.close()
