"""A process that answers over a pipe, and that may end or hang without harm to anybody else."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_END_SECONDS = 10.0
_CONTEXT = multiprocessing.get_context("spawn")  # threads do not survive a fork


class GuardedProcess:
    """A new process that runs `target` with `arguments` and, last, its end of a pipe.

    Attributes:
        connection: our end of the pipe.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        name: str,
    ) -> None:
        self.connection: Connection
        self.connection, theirs = _CONTEXT.Pipe()
        # No daemon, because a daemon could not have processes of its own, as some devices do.
        self._process = _CONTEXT.Process(target=target, args=(*arguments, theirs), name=name)
        self._process.start()
        theirs.close()

    def exit_code(self) -> int | None:
        """The exit code of the process. Waits some seconds if the process is about to end."""
        self._process.join(_END_SECONDS)
        return self._process.exitcode

    def end(self) -> None:
        """Closes the pipe, which ends a process that listens, and kills one that does not."""
        self.connection.close()
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()
