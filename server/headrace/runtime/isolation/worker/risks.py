"""Tells the server what this process does that may end it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


class ToldRisks:
    """As `Risks`.

    Args:
        ended: what has ended earlier processes of the device.
        tell: tells the server what is under way; an empty text if nothing is. It returns once the
            system has the message, so that the server gets it even if this process ends then.
    """

    def __init__(self, ended: Iterable[str], tell: Callable[[str], None]) -> None:
        self.ended = frozenset(ended)
        self._tell = tell

    @contextmanager
    def taking(self, what: str) -> Iterator[None]:
        self._tell(what)
        try:
            yield
        finally:
            self._tell("")
