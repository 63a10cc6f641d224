"""onnx's inference of types and shapes, in this process or in others.

onnx ends the process on some attributes of some operators, and holds Python's interpreter lock
while it infers. So a server, which gets networks from strangers, has onnx infer in a process of its
own once `infer_apart` was called. Such a process starts when it is first needed. If it ends, the
layers that it was asked about stay without types, and the next question starts another one.
"""

from __future__ import annotations

import logging
import os
import resource
import select
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Final

import onnx

from headrace.runtime.system.child_process import import_path, stops_held
from headrace.runtime.system.interruption import check

_log = logging.getLogger(__name__)

_SIZE: Final = struct.Struct("<Q")
_SECONDS: Final = 20.0
"""How long onnx may take for one question, which is about a few layers."""
_LOOK_SECONDS: Final = 0.1
"""How often a thread that waits for an answer looks whether anybody still wants it."""
_MOST_IDLE: Final = 2
"""As many as networks are loaded at once."""
_MEMORY_BYTES: Final = 4 * 2**30
"""The most address space of the process. Its libraries take most of it."""
_MOST_BYTES: Final = 256 * 2**20
"""The most bytes of an answer. A few layers with the ranks that NumPy has need some megabytes."""


class InferenceEnded(Exception):
    """onnx ended its process, or did not answer in time."""


class InferenceProcesses:
    """Processes in which onnx infers, one for each thread that asks. So nobody waits for another's
    network. Thread-safe: `_lock` guards the processes; a busy one belongs to its thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: set[subprocess.Popen[bytes]] = set()

    def ask(self, model: bytes) -> bytes:
        """What `_infer` answers for the serialised model. The process is ended as soon as nobody
        wants the answer any more.

        Raises:
            InferenceEnded: the process has ended, also if the system has none.
        """
        with self._lock:
            process = self._idle.pop() if self._idle else None
        try:
            process = process or _start()
            with self._lock:
                self._busy.add(process)
            answer = _exchange(process, model)
        except OSError as error:
            status = None if process is None else self._end(process)
            _log.info("a process that infers types ended with status %s", status)
            raise InferenceEnded(str(error)) from error
        except BaseException:
            if process is not None:
                self._end(process)
            raise
        with self._lock:
            self._busy.discard(process)
            keep = len(self._idle) < _MOST_IDLE
            if keep:
                self._idle.append(process)
        if not keep:
            self._end(process)
        return answer

    def stop(self) -> None:
        """Ends the processes. Whoever waits for an answer gets none."""
        with self._lock:
            idle, self._idle = self._idle, []
            for each in self._busy:
                each.kill()
        for each in idle:
            self._end(each)

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """Ends the process, and returns its status."""
        with self._lock:
            self._busy.discard(process)
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent yet
                    pipe.close()
        return process.wait()


_apart: InferenceProcesses | None = None


def infer_apart() -> None:
    """Has this process ask others from now on, until `stop_apart`."""
    global _apart
    if _apart is None:
        _apart = InferenceProcesses()


def stop_apart() -> None:
    """Ends those other processes, and has onnx infer in this one again."""
    global _apart
    process, _apart = _apart, None
    if process is not None:
        process.stop()


def infer(model: onnx.ModelProto) -> onnx.GraphProto:
    """The types and shapes of the values that the model's layers make, as a graph's `value_info`.

    Raises:
        InferenceEnded: onnx ended its process.
        Exception: of any kind, if onnx refuses the model.
    """
    process = _apart  # `stop_apart` may be called meanwhile
    if process is None:
        return onnx.shape_inference.infer_shapes(model).graph
    found = onnx.GraphProto.FromString(process.ask(model.SerializeToString()))
    if not found.value_info and found.doc_string:
        raise ValueError(found.doc_string)
    return found


def _infer(model: bytes) -> bytes:
    """A graph that has the inferred `value_info` alone, or onnx's error as its text."""
    answer = onnx.GraphProto()
    try:
        inferred = onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(model)).graph
        answer.value_info.extend(inferred.value_info)
    except Exception as error:  # noqa: BLE001 - C++ raises of every kind
        answer.doc_string = str(error)[:500] or type(error).__name__
    return answer.SerializeToString()


def _start() -> subprocess.Popen[bytes]:
    with stops_held():
        return subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
        )


def _exchange(process: subprocess.Popen[bytes], model: bytes) -> bytes:
    """
    Raises:
        OSError: the process has ended, or takes too long.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    _write(process.stdin.fileno(), model)
    end = time.monotonic() + _SECONDS
    answers = process.stdout.fileno()
    (size,) = _SIZE.unpack(_read(answers, _SIZE.size, end))
    if size > _MOST_BYTES:
        raise OSError(f"an answer of {size} bytes")
    return _read(answers, size, end)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(_SIZE.pack(len(data)) + data)
    while left:
        left = left[os.write(descriptor, left) :]


def _read(descriptor: int, size: int, end: float | None = None) -> bytes:
    """
    Raises:
        OSError: the other side has closed the pipe, or does not write until `end`.
        As `check`: nobody wants the bytes any more.
    """
    found = bytearray()
    while len(found) < size:
        if end is not None:
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            while not waiting.poll(1000 * _LOOK_SECONDS):
                check()
                if time.monotonic() > end:
                    raise TimeoutError("no answer in time")
        piece = os.read(descriptor, size - len(found))
        if not piece:
            raise EOFError("the pipe was closed") if end is None else ConnectionError("it ended")
        found += piece
    return bytes(found)


def main() -> None:
    """Answers questions from the standard input until it is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(EOFError, BrokenPipeError):
        while True:
            (size,) = _SIZE.unpack(_read(0, _SIZE.size))
            _write(1, _infer(_read(0, size)))


if __name__ == "__main__":
    main()
