"""A Python program in a process of its own, which says on lines of its output how far it is."""

from __future__ import annotations

import subprocess
import sys
from typing import IO, Any, Self

from tests.support.patience import PATIENCE_SECONDS


class Child:
    """A program that runs. It is killed when the context ends, if it has not ended by then.

    Args:
        program: its text.
        arguments: those of its command line.
        options: those of `subprocess.Popen`.
    """

    def __init__(self, program: str, *arguments: object, **options: Any) -> None:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._pipe(self._process.stdin).close()
        self._pipe(self._process.stdout).close()

    def line(self) -> str:
        """Waits for the next line; empty if the program has ended."""
        return self._pipe(self._process.stdout).readline().rstrip("\n")

    def finish(self) -> int:
        """Ends its input, and returns its exit code."""
        self._pipe(self._process.stdin).close()
        return self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """SIGKILL, if the program still runs."""
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe
