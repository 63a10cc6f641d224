"""A worker that is no worker: what it sends makes no sense, and it may not start at all."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from headrace.ipc.link import Link, links, packed
from headrace.runtime.errors import Unavailable
from headrace.runtime.isolation.server import process
from headrace.runtime.isolation.server.blame import End
from headrace.runtime.isolation.server.launch import NewWorker, launch
from headrace.runtime.isolation.server.process import WorkerLost, WorkerProcess
from headrace.testing.leaks import no_leaks
from tests.support.patience import PATIENCE_SECONDS


class Stranger:
    """A process that does nothing, and this end of the worker's connection, to write to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, theirs = links()
        self.control = Link(theirs)
        cancel, self._cancelled = links(blocking=False)
        self._living, life = os.pipe()
        output, self._written = os.pipe()
        idle = subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL)
        launched = NewWorker(idle, ours, cancel, life, output)
        monkeypatch.setattr(process, "launch", lambda: launched)
        self.worker = WorkerProcess("STRANGE")

    def close(self) -> None:
        self.control.close()
        self.worker.join()
        self._cancelled.close()
        for descriptor in (self._living, self._written):
            os.close(descriptor)


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    with no_leaks():
        made = Stranger(monkeypatch)
        yield made
        made.close()


def loose_file() -> int:
    return os.memfd_create("headrace-loose", os.MFD_ALLOW_SEALING)


@pytest.mark.parametrize(
    "answer",
    [
        {"call": [1]},
        {"call": 1, "error": 7},
        {"call": 1, "error": {"type": "ResourceExhausted", "message": "", "delay": "soon"}},
        {"call": 1, "error": {"type": "InvalidArgument", "message": "", "metadata": 7}},
        {"call": 1, "result": None, "files": "without their seals"},
        {"state": "UP", "files": "without their seals"},
    ],
)
def test_an_answer_without_sense_ends_the_worker_and_the_calls_that_wait(
    stranger: Stranger, answer: dict[str, Any]
) -> None:
    files = [loose_file(), loose_file()] if answer.pop("files", None) else []
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(stranger.worker.call, "describe", timeout=PATIENCE_SECONDS)
        assert stranger.control.receive().header["call"] == 1
        stranger.control.send(packed(answer, (), len(files)), files)
        for each in files:
            os.close(each)
        with pytest.raises(WorkerLost, match="the worker process of device STRANGE ended"):
            call.result()
    assert stranger.worker.ended.is_set()


@pytest.mark.parametrize("way", ["call", "order"])
def test_an_answer_that_comes_as_the_patience_ends_is_not_late(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    class Overtaken(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            stranger.control.send(packed({"call": 1, "result": None}))
            super().result(PATIENCE_SECONDS)
            raise TimeoutError

    worker = stranger.worker
    with monkeypatch.context() as patched:
        patched.setattr(process, "Future", Overtaken)
        if way == "call":
            with pytest.raises(Unavailable, match="does not answer now"):
                worker.call("metric", patience=PATIENCE_SECONDS)
        else:
            worker.order("unload", {}, PATIENCE_SECONDS)
    assert stranger.control.receive().header["call"] == 1
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(worker.call, "metric", patience=PATIENCE_SECONDS)
        assert stranger.control.receive().header["call"] == 2
        stranger.control.send(packed({"call": 2, "result": 7}))
        assert call.result()[0] == 7


def test_calls_end_even_if_it_cannot_be_judged_what_ended_the_worker(stranger: Stranger) -> None:
    def judge(end: End) -> None:
        raise MemoryError

    stranger.worker.judge = judge
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(stranger.worker.call, "describe", timeout=PATIENCE_SECONDS)
        assert stranger.control.receive().header["call"] == 1
        stranger.worker.kill()
        stranger.control.shutdown()
        with pytest.raises(WorkerLost, match=r"ended \(SIGKILL\)"):
            call.result()


@pytest.mark.parametrize("pipes", [0, 1, 2])
def test_a_worker_for_which_the_system_has_too_little_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, pipes: int
) -> None:
    made: list[tuple[int, int]] = []
    pipe = os.pipe

    def limited() -> tuple[int, int]:
        if len(made) == pipes:
            raise OSError(24, "Too many open files")
        made.append(pipe())
        return made[-1]

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    with no_leaks(), monkeypatch.context() as patched:
        patched.setattr(os, "pipe", limited)
        patched.setattr(subprocess, "Popen", refused)
        with pytest.raises(OSError, match=r"Too many|unavailable"):
            launch()


def test_a_worker_for_which_there_is_no_thread_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    started: list[NewWorker] = []

    def remembered() -> NewWorker:
        started.append(launch())
        return started[-1]

    monkeypatch.setattr(process, "launch", remembered)
    with no_leaks():
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            with pytest.raises(RuntimeError, match="new thread"):
                WorkerProcess("THREADLESS")
        assert started[0].process.returncode is not None
        assert started[0].control.fileno() == -1


def test_a_connection_that_ends_ends_a_process_that_goes_on(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_LAST_WORDS_SECONDS", 0.01)
    stranger.control.shutdown()
    stranger.worker.join()
    assert stranger.worker.end.how == "SIGKILL"
    with pytest.raises(WorkerLost):
        stranger.worker.call("describe")
    stranger.worker.stop()
    stranger.worker.stop()
