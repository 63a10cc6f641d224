"""Starts a worker's process, and describes how a process ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from headrace.runtime.isolation.wire.channel import Channel, channels

_KILLS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that other processes send."""


class Launched(NamedTuple):
    """A new worker, and the server's ends of the connections to it.

    Attributes:
        control: the connection for calls.
        cancel: descriptor to write the numbers of cancelled requests to; a write never blocks.
        life: descriptor that keeps the worker alive. The worker ends when it is closed.
        output: descriptor to read the worker's output from.
    """

    process: subprocess.Popen[bytes]
    control: Channel
    cancel: int
    life: int
    output: int


def launch() -> Launched:
    """Starts a worker.

    Raises:
        OSError: the system has no process or no descriptor for it. Nothing is left open.
    """
    with ExitStack() as ours, ExitStack() as theirs:
        channel, control = channels()
        ours.callback(channel.close)
        theirs.callback(control.close)
        cancelled, cancel = _pipe(theirs, ours, blocking=False)
        living, life = _pipe(theirs, ours)
        output, written = _pipe(ours, theirs)
        process = _start((control.fileno(), cancelled, living), written)
        ours.pop_all()
    return Launched(process, channel, cancel, life, output)


def how(status: int) -> str:
    """How a process ended, by its return code."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def crashed(status: int) -> bool:
    """Whether the process ended itself. If not, somebody killed it."""
    return -status not in _KILLS


def _pipe(readers: ExitStack, writers: ExitStack, *, blocking: bool = True) -> tuple[int, int]:
    reader, writer = os.pipe()
    readers.callback(os.close, reader)
    writers.callback(os.close, writer)
    os.set_blocking(writer, blocking)
    return reader, writer


def _start(descriptors: Sequence[int], output: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "headrace.runtime.isolation.worker.program",
        *map(str, descriptors),
    ]
    with stops_held():
        return subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
        )


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
    """The folders that this process imports from, so that the worker finds the same plugins."""
    return [path or str(Path.cwd()) for path in sys.path]
