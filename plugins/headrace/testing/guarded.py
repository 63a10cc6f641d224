"""A process that answers over a pipe, and that may end or hang without harm to anybody else.

``python -m headrace.testing.guarded DESCRIPTOR`` is such a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from headrace.runtime.isolation.server.launch import how
from headrace.runtime.system.child_process import import_path

_END_SECONDS = 10.0
_LAST_WORDS_BYTES = 600


class GuardedProcess:
    """A new process that runs `target` with `arguments` and, last, its end of a pipe.

    It imports everything anew, because threads do not survive a fork. What it writes to its
    standard error is kept, for the case that it ends.

    Attributes:
        connection: our end of the pipe.
    """

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.connection: Connection
        self.connection, theirs = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
        )
        theirs.close()
        with suppress(BrokenPipeError):  # it has ended; whoever listens hears of it
            self.connection.send((target, arguments))

    def ending(self) -> str:
        """How the process ended. Waits some seconds if it is about to end."""
        try:
            return how(self._process.wait(_END_SECONDS))
        except subprocess.TimeoutExpired:
            return "it closed its connection"

    def last_words(self) -> str:
        """The last lines that the process wrote to its standard error."""
        size = os.fstat(self._errors.fileno()).st_size
        start = max(0, size - _LAST_WORDS_BYTES)
        said = os.pread(self._errors.fileno(), size - start, start)
        return said.decode(errors="replace").strip()

    def end(self) -> None:
        """Closes the pipe, which ends a process that listens, and kills one that does not."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.connection.close()
        self._errors.close()


def main(descriptor: int) -> None:
    connection: Connection = Connection(descriptor)
    target, arguments = connection.recv()
    target(*arguments, connection)


if __name__ == "__main__":
    main(int(sys.argv[1]))
