"""Keeps the results of layer trials on disk beside the kernels. For the backend's thread only."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

_MOST: Final = 100_000
_TABLE: Final = "CREATE TABLE IF NOT EXISTS trials (network BLOB PRIMARY KEY, reason TEXT)"


class KeptTrials:
    """Keeps answers longer than the process lives. If the file cannot be used, the trials run again
    and take their time.

    Args:
        path: the file. It is made if it does not exist.
        context: everything else that an answer depends on: versions and the device.
    """

    def __init__(self, path: Path, context: str) -> None:
        self._path = path
        self._context = hashlib.sha256(f"{context}\0{_sources()}\0".encode())

    def reason(self, network: bytes, ask: Callable[[bytes], str | None]) -> str | None:
        """The reason why the layer cannot be built, None if it can. It comes from the file if that
        has it, otherwise from `ask`.

        Args:
            network: the serialised layer. It is the same for layers that are alike.
        """
        digest = self._context.copy()
        digest.update(network)
        key = digest.digest()
        try:
            with closing(sqlite3.connect(self._path)) as file, file:
                file.execute(_TABLE)
                row = file.execute("SELECT reason FROM trials WHERE network = ?", (key,)).fetchone()
                if row is not None:
                    return None if row[0] is None else str(row[0])
                reason = ask(network)
                if file.execute("SELECT count(*) FROM trials").fetchone()[0] >= _MOST:
                    file.execute("DELETE FROM trials")
                file.execute("INSERT OR REPLACE INTO trials VALUES (?, ?)", (key, reason))
                return reason
        except sqlite3.Error as error:
            _log.debug("%s cannot be used: %s", self._path, error)
            return ask(network)


def _sources() -> str:
    """The digest of this plugin's code, because the result of a trial depends on the code."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
