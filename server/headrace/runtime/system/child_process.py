"""What processes that this one starts inherit."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def stops_held() -> Iterator[None]:
    """Blocks SIGINT and SIGTERM for processes that are started inside the context. A terminal or a
    supervisor may send them to all processes at any moment, but the server first finishes what runs
    and then ends its workers itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def import_path() -> list[str]:
    """The folders that this process imports from, so that a process finds the same modules."""
    return [path or str(Path.cwd()) for path in sys.path]
