"""Starts a worker's process, and describes how a process ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from headrace.ipc.link import Link, links
from headrace.runtime.system.child_process import import_path, stops_held

_KILLS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that other processes send."""


class NewWorker(NamedTuple):
    """A new worker, and the server's ends of the connections to it.

    Attributes:
        control: the link for calls.
        cancel: the link for the numbers of cancelled calls and requests. A send never blocks.
        life: descriptor that keeps the worker alive. The worker ends when it is closed.
        output: descriptor to read the worker's output from.
    """

    process: subprocess.Popen[bytes]
    control: Link
    cancel: Link
    life: int
    output: int


def launch() -> NewWorker:
    """Starts a worker.

    Raises:
        OSError: the system has no process or no descriptor for it. Nothing is left open.
    """
    with ExitStack() as ours, ExitStack() as theirs:
        control, called = _link(ours, theirs)
        cancel, cancelled = _link(ours, theirs, blocking=False)
        living, life = _pipe(theirs, ours)
        output, written = _pipe(ours, theirs)
        process = _start((called, cancelled, living), written)
        ours.pop_all()
    return NewWorker(process, control, cancel, life, output)


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


def _link(ours: ExitStack, theirs: ExitStack, *, blocking: bool = True) -> tuple[Link, int]:
    """This process's end, and the descriptor of the other one."""
    link, end = links(blocking=blocking)
    ours.callback(link.close)
    theirs.callback(end.close)
    return link, end.fileno()


def _pipe(readers: ExitStack, writers: ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    readers.callback(os.close, reader)
    writers.callback(os.close, writer)
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
