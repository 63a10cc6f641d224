"""Programs of ours that tests start. They are forked from a process that has imported what they
import, where that makes no difference. So a server takes a tenth of a second of processor time to
start instead of one, and a worker a twentieth instead of a half."""

from __future__ import annotations

import atexit
import gc
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import pytest

_PROGRAMS = (
    "headrace.runtime.isolation.worker.program",
    "headrace.runtime.network.onnx_inference",
    "headrace.server",
    "headrace.testing.guarded",
)
_IMPORTED = (
    "anyio._backends._asyncio",
    "encodings.idna",
    "headrace.plugins.batch.plugin",
    "headrace.plugins.cpu.plugin",
    "headrace.plugins.hetero.plugin",
    "headrace.plugins.multi.plugin",
    "headrace.plugins.pipeline.plugin",
    "headrace.plugins.template.plugin",
    "headrace.runtime.isolation.worker.device",
    "headrace.runtime.isolation.worker.lane",
    "headrace.server.app",
    "headrace.server.command",
    "headrace.testing.guarded",
    "typer._adapters",
)
_UNREAD = ("AWS_", "HEADRACE_", "NOTIFY_", "ONEDNN_", "OTEL_", "PYTEST_", "PYTHONPATH", "TEST_")
"""Variables that nothing reads while it is imported begin with one of these."""
_OPTIONS = {"env", "pass_fds", "stderr", "stdin", "stdout"}
_BYTES = 1 << 17
_COMM_BYTES = 15  # Linux keeps no more of a process's name
_start = threading.Lock()  # of the socket to the parent, and of those that it has started
_started: list[Forked | Popen] = []


class Popen(subprocess.Popen[bytes]):
    """Starts one of our programs as a `Forked`, and any other one as always."""

    def __new__(cls, command: Any, *_: Any, **options: Any) -> Any:
        if _is_ours(command, options) and _same(options.get("env")):
            return Forked(command[2:], **options)
        return super().__new__(cls)

    def __init__(self, command: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(command, *arguments, **options)
        if _is_ours(command, options):
            self.program = command[2]
            with _start:
                _started.append(self)


class Forked:
    """What our code uses of `subprocess.Popen`. Thread-safe: `_wait` guards the end's reading."""

    stdout: IO[bytes]

    def __init__(
        self,
        program: Sequence[str],
        *,
        stdin: int,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        assert stdin == subprocess.DEVNULL
        self.returncode: int | None = None
        self._wait = threading.Lock()
        self.program, *arguments = program
        texts = [self.program, *arguments[: len(arguments) - len(pass_fds)]]
        assert arguments[len(texts) - 1 :] == [str(each) for each in pass_fds]
        mask = [*signal.pthread_sigmask(signal.SIG_BLOCK, ())]
        order = json.dumps([texts, {**(os.environ if env is None else env)}, str(Path.cwd()), mask])
        with ExitStack() as theirs:
            self._ended, status = os.pipe()
            theirs.callback(os.close, status)
            if stdout == subprocess.PIPE:
                reading, stdout = os.pipe()
                theirs.callback(os.close, stdout)
                self.stdout = os.fdopen(reading, "rb")
            written = [_descriptor(each, theirs) for each in (stdout or 1, stderr or 2)]
            with _start:
                control, _ = _parent()
                socket.send_fds(control, [order.encode()], [status, *written, *pass_fds])
                self.pid = int(control.recv(_BYTES))
                _started.append(self)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        with self._wait:
            if self.returncode is None:
                if not select.select([self._ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("a program of ours", timeout or 0)
                self.returncode = int(os.read(self._ended, _BYTES))
                os.close(self._ended)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def running(program: str) -> list[int]:
    """The processes of this program that have not ended."""
    with _start:
        _started[:] = [each for each in _started if Path(f"/proc/{each.pid}").exists()]
        return [each.pid for each in _started if each.program == program]


def _is_ours(command: Any, options: Mapping[str, Any]) -> bool:
    usual = isinstance(command, list) and command[:2] == [sys.executable, "-m"]
    said = {"stdin"} <= options.keys() <= _OPTIONS and options.get("stderr") != subprocess.PIPE
    return usual and said and command[2] in _PROGRAMS


def _same(environment: Mapping[str, str] | None) -> bool:
    """Whether what the parent has imported would be the same in this environment."""
    changed = (os.environ if environment is None else environment).items() ^ _inherited().items()
    return all(name.startswith(_UNREAD) for name, _ in changed)


def _descriptor(output: int | IO[bytes], opened: ExitStack) -> int:
    if output == subprocess.DEVNULL:
        return opened.enter_context(Path(os.devnull).open("wb")).fileno()
    return output if isinstance(output, int) else output.fileno()


@cache
def _inherited() -> dict[str, str]:
    return dict(os.environ)


@contextmanager
def programs_forked() -> Iterator[None]:
    """Forks programs of ours from now on, with what the environment is now."""
    _inherited()
    _sockets()  # now: a test may count what it has opened
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Popen)
        yield


@cache
def _sockets() -> tuple[socket.socket, socket.socket]:
    """Ours, and the parent's until there is one."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@cache
def _parent() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The parent ends with this process."""
    ours, theirs = _sockets()
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
                order, descriptors, _, _ = socket.recv_fds(control, _BYTES, 16)
                if b'"AWS_' in order:
                    importlib.import_module("s3fs")  # in none that meets no store
                    gc.freeze()
                pid = os.fork() if order else 0
                if not pid:
                    for each in (control.detach(), *running, *(end for _, end in running.values())):
                        os.close(each)
                    return order, descriptors
                control.send(str(pid).encode())
                end, *others = descriptors
                for each in others:
                    os.close(each)
                running[pidfd := os.pidfd_open(pid)] = pid, end
                poller.register(pidfd, select.POLLIN)
            else:
                pid, end = running.pop(ready)
                poller.unregister(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(BrokenPipeError):  # nobody waits for it
                    os.write(end, str(code).encode())
                os.close(end)


def _main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that no program looks at what it shares with the others
    stops = signal.SIGINT, signal.SIGTERM
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # a program sets its own mask when it begins
    order, descriptors = _fork_for_orders(socket.socket(fileno=int(sys.argv[1])))
    if not order:
        return
    (program, *arguments), environment, folder, mask = json.loads(order)
    status, *written = descriptors[:3]
    os.close(status)
    for number, descriptor in enumerate(written, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [each for each in path if each and each not in sys.path]
    sys.argv[1:] = [*arguments, *map(str, descriptors[3:])]
    Path("/proc/self/comm").write_text(program[-_COMM_BYTES:])
    if program == "headrace.server":
        _pass_over_first_look()
    sys.modules.pop(program, None)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        _exit(ended.code)


def _pass_over_first_look() -> None:
    """A server begins with a look for garbage. Here it would find nothing in what the parent has
    imported, and copy all of that into the server's memory."""
    looks = importlib.import_module("headrace.runtime.system.garbage")._looks

    def first() -> None:
        del looks._at_all
        gc.freeze()
        looks._known = sys.getallocatedblocks()

    looks._at_all = first


def _exit(code: int) -> None:
    """Ends as the interpreter does, except that it does not free what it shares with the parent."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
