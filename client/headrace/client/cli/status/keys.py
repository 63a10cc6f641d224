"""Reads single keys from a terminal, without waiting for the end of a line."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_QUIT: Final = frozenset({b"q", b"Q", b"\x04"})


class Keys:
    """The keys of a terminal, or of nothing if the standard input is no terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def quit_within(self, seconds: float) -> bool:
        """Waits this long. Returns True at once if somebody wants to quit."""
        until = time.monotonic() + seconds
        while self._descriptor is not None:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._descriptor], [], [], left)[0]:
                return False
            pressed = os.read(self._descriptor, 1)
            if pressed in _QUIT:
                return True
            if not pressed:  # the terminal is gone
                self._descriptor = None
        time.sleep(max(0.0, until - time.monotonic()))
        return False


@contextmanager
def keys() -> Iterator[Keys]:
    """The terminal's keys. Afterwards the terminal is as before."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield Keys(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
