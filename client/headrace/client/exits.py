"""Ends what is still open when the interpreter exits.

The threads of clients are daemons, so that an open client keeps no program alive. At its exit, the
interpreter freezes such threads where they are. If one of them then holds a lock, the program never
ends, because objects that are destroyed at the exit take that lock, too. So everything with such
threads is closed before that, while the threads still run.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from typing import Final, Protocol

_log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 10.0
"""How long to wait for a thread. Only a callback of the user can keep one longer."""


class Closable(Protocol):
    def close(self) -> None:
        """Cancels what is in flight, and waits for the threads. Idempotent."""


_open: dict[weakref.ref[Closable], None] = {}
"""In order. A plain dictionary, because another thread may add to it while this one copies it. That
takes no lock, which a child process might inherit locked."""


def _forget(reference: weakref.ref[Closable]) -> None:
    _open.pop(reference, None)


def close_at_exit(each: Closable) -> None:
    """Has `each` closed at the interpreter's exit, if it still exists then, and before everything
    that was named here earlier."""
    _open[weakref.ref(each, _forget)] = None


def wait_for(thread: threading.Thread | None) -> None:
    """Waits for the end of a thread, unless it is the current one."""
    if thread is not None and thread is not threading.current_thread():
        thread.join(PATIENCE_SECONDS)


def _close_all() -> None:
    while _open:  # closing one may let a thread begin another
        for reference in reversed(list(_open)):
            _forget(reference)
            each = reference()
            if each is not None:
                _close(each)


def _close(each: Closable) -> None:
    try:
        each.close()
    except Exception:  # noqa: BLE001 - the others are to be closed as well
        _log.debug("cannot close %r at the program's exit", each, exc_info=True)


# It runs when threads that are no daemons have ended, and before the others are frozen.
atexit.register(_close_all)
