"""onnx's inference of types and shapes, in this process or in one of its own.

onnx ends the process on some attributes of some operators, and holds Python's interpreter lock
while it infers. So a server, which gets networks from strangers, has onnx infer in a process of its
own once `infer_apart` was called. That process starts when it is first needed. If it ends, the
layers that it was asked about stay without types, and the next question starts it again.
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

_log = logging.getLogger(__name__)

_SIZE: Final = struct.Struct("<Q")
_SECONDS: Final = 20.0
"""How long onnx may take for one question, which is about a few layers."""
_MEMORY_BYTES: Final = 4 * 2**30
"""The most address space of the process. Its libraries take most of it."""
_MOST_BYTES: Final = 256 * 2**20
"""The most bytes of an answer. A few layers with the ranks that NumPy has need some megabytes."""


class InferenceEnded(Exception):
    """onnx ended its process, or did not answer in time."""


class InferenceProcess:
    """A process in which onnx infers. Thread-safe: `_lock` guards the process, and lets one thread
    ask at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, model: bytes) -> bytes:
        """What `_infer` answers for the serialised model.

        Raises:
            InferenceEnded: the process has ended, also if the system has none.
        """
        with self._lock:
            try:
                if self._process is None:
                    self._process = _start()
                return _exchange(self._process, model)
            except OSError as error:
                status = self._end()
                _log.info("the process that infers types ended with status %s", status)
                raise InferenceEnded(str(error)) from error

    def stop(self) -> None:
        """Ends the process, if there is one. Whoever waits for an answer gets none."""
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _end(self) -> int | None:
        """Ends the process, and returns its status; None if there is no process."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not sent yet
                    pipe.close()
        return process.wait()


_apart: InferenceProcess | None = None


def infer_apart() -> None:
    """Has this process ask another one from now on, until `stop_apart`."""
    global _apart
    if _apart is None:
        _apart = InferenceProcess()


def stop_apart() -> None:
    """Ends that other process, and has onnx infer in this one again."""
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
    """
    found = bytearray()
    while len(found) < size:
        if end is not None:
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            if not waiting.poll(1000 * max(0.0, end - time.monotonic())):
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
