"""Starts a worker's process, and describes how a process ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from headrace.runtime.isolation.wire.channel import Channel, channels
from headrace.runtime.system.child_process import import_path, stops_held

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
