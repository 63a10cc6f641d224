"""Servers' processes that are forked from one that has imported what servers import. So a start
takes a quarter of a second of processor time instead of one. All else is as it always is."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

_IMPORTED = ("headrace.server.app", "headrace.server.command", "typer._adapters")
_UNREAD = ("AWS_", "HEADRACE_", "OTEL_", "PYTEST_", "TEST_")
"""Variables that nothing reads while it is imported begin with one of these."""
_BYTES = 1 << 17
_lock = threading.Lock()  # of the socket to the parent


class Forked:
    """What tests use of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> None:
        order = json.dumps([[*arguments], {**environment}, str(Path.cwd())]).encode()
        reading, output = os.pipe()
        self._ended, status = os.pipe()
        with _lock:
            control, _ = _parent()
            socket.send_fds(control, [order], [output, log, status])
            self.pid = int(control.recv(_BYTES))
        os.close(output)
        os.close(status)
        self.stdout: IO[bytes] = os.fdopen(reading, "rb")
        self.returncode: int | None = None

    @staticmethod
    def can_have(environment: Mapping[str, str]) -> bool:
        """Whether what the parent has imported would be the same in this environment."""
        changed = environment.items() ^ _inherited().items()
        return all(name.startswith(_UNREAD) for name, _ in changed)

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("headrace.server", timeout or 0)
            self.returncode = int(os.read(self._ended, _BYTES))
            os.close(self._ended)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _inherited() -> dict[str, str]:
    return dict(os.environ)


@cache
def _parent() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The parent ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            env=_inherited(),
            pass_fds=[theirs.fileno()],
        )
    return ours, process


def _fork_for_orders(control: socket.socket) -> tuple[bytes, list[int]]:
    """Returns an order and its descriptors in the process that is forked for it, and an empty one
    in the parent when the tests have ended."""
    running: dict[int, tuple[int, int]] = {}  # by pidfd: pid, and where its end is told
    poller = select.poll()
    poller.register(control, select.POLLIN)
    while True:
        for ready, _ in poller.poll():
            if ready == control.fileno():
                order, descriptors, _, _ = socket.recv_fds(control, _BYTES, 3)
                pid = os.fork() if order else 0
                if not pid:
                    for each in (control.detach(), *running, *(end for _, end in running.values())):
                        os.close(each)
                    return order, descriptors
                control.send(str(pid).encode())
                output, log, end = descriptors
                os.close(output)
                os.close(log)
                running[pidfd := os.pidfd_open(pid)] = pid, end
                poller.register(pidfd, select.POLLIN)
            else:
                pid, end = running.pop(ready)
                poller.unregister(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.write(end, str(code).encode())
                os.close(end)


def _main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    order, descriptors = _fork_for_orders(socket.socket(fileno=int(sys.argv[1])))
    if not order:
        return
    arguments, environment, folder = json.loads(order)
    for number, descriptor in enumerate(descriptors, start=1):
        if number < 3:
            os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[1:] = arguments
    runpy.run_module("headrace.server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
