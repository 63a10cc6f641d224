"""Who asked for the load or query that a thread works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple


class Asker(NamedTuple):
    """
    Attributes:
        name: of an identity. Empty for the server itself and for callers without an identity, who
            count as one.
        trusted: whether the asker may disturb others anyway, because it may unload their networks.
            A device compiles what others ask for in a process that serves nobody.
        owner: the tenant whose networks the asker sees before the shared ones; empty if none.
    """

    name: str = ""
    trusted: bool = True
    owner: str = ""


NOBODY: Final = Asker()
"""The server itself."""

_ASKER: ContextVar[Asker] = ContextVar("asker", default=NOBODY)


def current_asker() -> Asker:
    """Whoever asked for the work of this thread."""
    return _ASKER.get()


@contextmanager
def asking(asker: Asker) -> Iterator[None]:
    """Within it, the thread works for `asker`."""
    before = _ASKER.set(asker)
    try:
        yield
    finally:
        _ASKER.reset(before)
