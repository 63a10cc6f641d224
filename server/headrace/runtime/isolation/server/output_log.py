"""Logs what a worker writes to its standard output and error."""

from __future__ import annotations

import logging
import os

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 16 * 1024
_LONGEST_LINE = 4096
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}


class OutputLog:
    """Reads a pipe line by line; for one thread.

    A line that begins with a level's name is logged at that level. Any other line is logged as
    information. The rest of a very long line is dropped.
    """

    def __init__(self, device: str, descriptor: int) -> None:
        self._device = device
        self._descriptor = descriptor
        self._rest = b""
        os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> bool:
        """Logs what can be read now. Returns False at the end of the pipe."""
        try:
            data = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LONGEST_LINE]
        for line in lines:
            self._write(line)
        return True

    def finish(self) -> None:
        """Logs what is left. Does not wait for the end of the pipe, because a child of the worker
        may keep it open."""
        while True:
            try:
                data = os.read(self._descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._write(line)
        if self._rest:
            self._write(self._rest)
            self._rest = b""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, line: bytes) -> None:
        text = line[:_LONGEST_LINE].decode(errors="replace").rstrip()
        if not text:
            return
        level, _, rest = text.partition(" ")
        known = _LEVELS.get(level)
        if known is None:
            _log.info("%s: %s", self._device, text)
        else:
            _log.log(known, "%s: %s", self._device, rest)
