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
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Final

import onnx

from headrace.ipc.link import Disconnected, Link, links, packed
from headrace.ipc.segments import map_files, write_file
from headrace.runtime.system.child_process import import_path, stops_held
from headrace.runtime.system.interruption import check

_log = logging.getLogger(__name__)

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
        self._idle: list[InferenceProcess] = []
        self._busy: set[InferenceProcess] = set()

    def ask(self, model: bytes) -> bytes:
        """What `_infer` answers for the serialised model. The process is ended as soon as nobody
        wants the answer any more.

        Raises:
            InferenceEnded: the process has ended, also if the system has none.
        """
        with self._lock:
            process = self._idle.pop() if self._idle else None
        try:
            process = process or InferenceProcess()
            with self._lock:
                self._busy.add(process)
            answer = process.ask(model)
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
            for process in self._busy:
                process.kill()
        for process in idle:
            self._end(process)

    def _end(self, process: InferenceProcess) -> int:
        """Ends the process, and returns its status."""
        with self._lock:
            self._busy.discard(process)
        return process.end()


class InferenceProcess:
    """One process, and the link to it.

    Raises:
        OSError: the system has none.
    """

    def __init__(self) -> None:
        self._link, end = links()
        command = [sys.executable, "-m", __name__, str(end.fileno())]
        try:
            with end, stops_held():
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(end.fileno(),),
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
                )
        except BaseException:
            self._link.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """With which it has ended; None while it lives."""
        return self._process.returncode

    def ask(self, model: bytes) -> bytes:
        """
        Raises:
            OSError: the process has ended, takes too long, or its answer makes no sense.
            As `check`: nobody wants the answer any more.
        """
        with write_file((model,)) as file:
            self._link.send(packed({}, (), 1), (file,))
        end, waiting = time.monotonic() + _SECONDS, select.poll()
        waiting.register(self._link, select.POLLIN)
        while (answer := self._link.take()) is None:
            while not waiting.poll(1000 * _LOOK_SECONDS):
                check()
                if time.monotonic() > end:
                    raise TimeoutError("no answer in time")
            self._link.read()
        files = map_files(answer.descriptors)
        if len(files) != 1 or len(files[0]) > _MOST_BYTES:
            raise Disconnected("the answer makes no sense")
        return bytes(files[0])

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        """Ends the process, and returns its status."""
        self._process.kill()
        self._link.close()
        return self._process.wait()


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
    inferred = onnx.GraphProto.FromString(process.ask(model.SerializeToString()))
    if not inferred.value_info and inferred.doc_string:
        raise ValueError(inferred.doc_string)
    return inferred


def _infer(model: bytes) -> bytes:
    """A graph that has the inferred `value_info` alone, or onnx's error as its text."""
    answer = onnx.GraphProto()
    try:
        inferred = onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(model)).graph
        answer.value_info.extend(inferred.value_info)
    except Exception as error:  # noqa: BLE001 - C++ raises of every kind
        answer.doc_string = str(error)[:500] or type(error).__name__
    return answer.SerializeToString()


def main(descriptor: int) -> None:
    """Answers questions that come on a link, until it ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    link = Link(socket.socket(fileno=descriptor))
    with suppress(Disconnected):
        while True:
            (model,) = map_files(link.receive().descriptors)
            with write_file((_infer(bytes(model)),)) as file:
                link.send(packed({}, (), 1), (file,))


if __name__ == "__main__":
    main(int(sys.argv[1]))
