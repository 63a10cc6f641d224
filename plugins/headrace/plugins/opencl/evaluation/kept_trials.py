"""What trials of single layers found, on disk beside the kernels. For the backend's thread only."""

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
    """Answers that outlive the process. A file that cannot be used costs the time of the trials
    alone.

    Args:
        path: of the file, made if it is not there.
        context: all else that an answer depends on, as versions and the device.
    """

    def __init__(self, path: Path, context: str) -> None:
        self._path = path
        self._context = hashlib.sha256(f"{context}\0{_sources()}\0".encode())

    def reason(self, network: bytes, ask: Callable[[bytes], str | None]) -> str | None:
        """Why the layer cannot be built, None if it can: as kept, or else as `ask` finds.

        Args:
            network: serialised, the same for alike layers.
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
    """The digest of this plugin's code, which decides what a layer's trial finds."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
