"""Whether a test gave back the threads and file descriptors that it took."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_PATIENCE_SECONDS = 60.0


@contextmanager
def no_leaks() -> Iterator[None]:
    """Fails if more Python threads or descriptors are left than there were before.

    Files under ``/dev`` that a driver keeps open after its first use do not count.
    """
    threads, descriptors = set(threading.enumerate()), _open_descriptors()
    gc.freeze()  # so that each collection looks at new objects only
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - threads:
        thread.join(_PATIENCE_SECONDS)
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    assert not left, f"threads left: {left}"
    opened = _open_descriptors() - descriptors
    assert not opened, f"file descriptors left: {sorted(opened)}"


def _open_descriptors() -> set[tuple[str, str]]:
    """The number and target of each open descriptor; empty if the system does not list them."""
    descriptors = set()
    for link in _DESCRIPTORS.iterdir() if _DESCRIPTORS.is_dir() else ():
        try:
            target = str(link.readlink())
        except FileNotFoundError:  # the directory's own, gone by now
            continue
        if not target.startswith("/dev/"):
            descriptors.add((link.name, target))
    return descriptors
