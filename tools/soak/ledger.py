"""How many requests a client process has sent, and how they ended, in a file that outlives it.

The counts lie in a mapped file, so that those of a process that is killed are exact: what is sent
and has no end was in flight.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np


class End(IntEnum):
    """What became of a request, as its client knows it; `SENT` counts them all."""

    SENT = 0
    OK = 1
    """Answered, and the answer was right."""
    FAILED = 2
    """The server computed it and said why it failed."""
    CANCELLED = 3
    """The server said that it was cancelled."""
    EXPIRED = 4
    """The server said that its time was up."""
    REFUSED = 5
    """The server took it for bad and did not accept it."""
    ERROR = 6
    """Any other error; nobody knows what the server has counted."""
    GIVEN_UP = 7
    """The client has left, or its own deadline has passed."""


class Row(NamedTuple):
    """Requests of one kind to one network."""

    kind: str
    network: str


Counts = dict[Row, Counter[End]]


class Ledger:
    """The counts of one process. Thread-safe; `_lock` guards the counts.

    Args:
        path: the file; made anew. The names of the rows are beside it.
    """

    def __init__(self, path: Path, rows: Iterable[Row]) -> None:
        self._rows = {row: at for at, row in enumerate(rows)}
        path.with_suffix(".rows").write_text(json.dumps(list(self._rows)))
        shape = (max(len(self._rows), 1), len(End))
        self._counts = np.memmap(path, np.int64, "w+", shape=shape)
        self._lock = threading.Lock()

    def add(self, row: Row, end: End, count: int = 1) -> None:
        with self._lock:
            self._counts[self._rows[row], end] += count


def read(path: Path) -> Counts:
    """What a process has counted so far; nothing if it has not begun."""
    names = path.with_suffix(".rows")
    if not path.exists() or not names.exists():
        return {}
    rows = [Row(*each) for each in json.loads(names.read_text())]
    data = np.fromfile(path, np.int64)
    if data.size < len(rows) * len(End):
        return {}
    table = data.reshape(-1, len(End))
    return {
        row: Counter({end: int(table[at, end]) for end in End if table[at, end]})
        for at, row in enumerate(rows)
    }


def in_flight(counts: Counter[End]) -> int:
    """How many of the requests have not ended."""
    return 2 * counts[End.SENT] - counts.total()


def total(many: Iterable[Counts]) -> Counts:
    """The sums of several processes."""
    found: Counts = {}
    for counts in many:
        for row, each in counts.items():
            found.setdefault(row, Counter()).update(each)
    return found


class Notes:
    """Lines of a process's own file: errors, and how long requests took. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._lock = threading.Lock()
        self._seconds: dict[str, list[float]] = {}

    def error(self, row: Row, code: str, text: str) -> None:
        self._write({"kind": row.kind, "network": row.network, "code": code, "text": text[:500]})

    def took(self, kind: str, seconds: float) -> None:
        with self._lock:
            self._seconds.setdefault(kind, []).append(seconds)

    def flush(self) -> None:
        """Writes the quantiles since the last time."""
        with self._lock:
            taken, self._seconds = self._seconds, {}
        for kind, seconds in taken.items():
            quantiles = np.quantile(seconds, (0.5, 0.95, 0.99)).tolist()
            self._write({"kind": kind, "requests": len(seconds), "seconds": quantiles})

    def _write(self, facts: dict[str, object]) -> None:
        line = json.dumps({"at": time.time(), **facts})
        with self._lock:
            self._file.write(line + "\n")
