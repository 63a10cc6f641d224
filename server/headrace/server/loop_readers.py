"""Has the event loop read what other processes send."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


class LoopReaders:
    """The `Readers` of an event loop. It is made on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()

    def add(self, descriptor: int, readable: Callable[[], None]) -> bool:
        with suppress(RuntimeError):  # the loop is closed
            if threading.get_ident() == self._thread:
                self._loop.add_reader(descriptor, readable)
            else:
                self._loop.call_soon_threadsafe(self._loop.add_reader, descriptor, readable)
            return True
        return False

    def remove(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
