"""A worker that is no worker: what it sends makes no sense, and it may not start at all."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import Any

import pytest

from headrace.ipc.link import Link, links, packed
from headrace.runtime.device.load import Load
from headrace.runtime.errors import Cancelled, InvalidModel, Unavailable
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.model_files import OWN, ModelFiles
from headrace.runtime.isolation.server import process
from headrace.runtime.isolation.server.blame import End, Work
from headrace.runtime.isolation.server.launch import NewWorker, launch
from headrace.runtime.isolation.server.process import WorkerLost, WorkerProcess
from headrace.runtime.isolation.server.worker_network import WorkerNetwork
from headrace.testing.case import network_of
from headrace.testing.leaks import no_leaks
from headrace.testing.occupied import eventually
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


NETWORK = network_of("g (float[n] x) => (float[n] y) { y = Relu(x) }")


def leave(stranger: Stranger, ask: Callable[[CancelToken], object]) -> int:
    """Has a thread ask for something, and leaves before there is an answer. Returns the number of
    the call."""
    token = CancelToken()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, token)
        message = stranger.control.receive()
        for each in message.descriptors:
            os.close(each)
        token.cancel(Cancelled("the caller has left"))
        with pytest.raises(Cancelled, match="the caller has left"):
            asked.result(PATIENCE_SECONDS)
    number: int = message.header["call"]
    return number


def ask_for(worker: WorkerProcess, work: Work) -> Callable[[CancelToken], object]:
    def ask(token: CancelToken) -> None:
        with worker.doing(work):
            worker.call("query", token=token)

    return ask


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
    told = {name: each for name, each in answer.items() if name != "files"}
    files = [loose_file(), loose_file()] if "files" in answer else []
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(stranger.worker.call, "describe", timeout=PATIENCE_SECONDS)
        assert stranger.control.receive().header["call"] == 1
        stranger.control.send(packed(told, (), len(files)), files)
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


def test_whoever_leaves_waits_no_more_and_the_work_is_under_way_until_the_worker_answers(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE_SECONDS", 0.0)
    worker, work = stranger.worker, Work(NETWORK, "", "queried")
    number = leave(stranger, ask_for(worker, work))
    assert worker.under_way == [work]
    stranger.control.send(packed({"call": number, "result": None}))
    eventually(lambda: not worker.under_way, "nothing under way")


def test_work_that_was_left_may_be_why_the_worker_ends(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE_SECONDS", 0.0)
    worker, work = stranger.worker, Work(NETWORK, "", "queried")
    leave(stranger, ask_for(worker, work))
    worker.kill()
    stranger.control.shutdown()
    worker.join()
    assert worker.end.works == (work,)
    assert not worker.under_way


def test_a_worker_that_owes_answers_to_many_who_have_left_gets_no_more_such_work(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(process, "_MOST_LEFT", 2)
    worker = stranger.worker
    works = [Work(NETWORK, "", "queried") for _ in range(2)]
    numbers = [leave(stranger, ask_for(worker, work)) for work in works]
    with pytest.raises(Unavailable, match="does not answer now"):
        worker.call("query", token=CancelToken())
    stranger.control.send(packed({"call": numbers[0], "result": None}))
    eventually(lambda: worker.under_way == works[1:], "one answer")
    leave(stranger, ask_for(worker, works[0]))


def test_a_network_that_is_loaded_after_its_caller_has_left_is_unloaded(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE_SECONDS", 0.0)
    worker = stranger.worker
    loading = WorkerNetwork(Load(NETWORK, {}, native=b"native"), "")

    def ask(token: CancelToken) -> None:
        with worker.doing(loading.loading):
            loading.load(worker, token)

    number = leave(stranger, ask)
    assert not worker.models  # the graph is not wanted either
    stranger.control.send(packed({"call": number, "result": {}}))
    told = stranger.control.receive().header
    assert (told["method"], told["arguments"]) == ("unload", {"number": number - 1})
    assert loading.loaded is None


def model_of(content: bytes) -> ModelFiles:
    return ModelFiles.written([content], {OWN: sha256(content).hexdigest()}, Limits())


def test_a_worker_may_ask_for_the_graph_of_each_of_its_networks_once(stranger: Stranger) -> None:
    def ask(number: int) -> Any:
        stranger.control.send(packed({"model": number}))
        message = stranger.control.receive()
        told = message.header["arguments"]
        assert (message.header["method"], told["number"]) == ("model", number)
        if "error" in told:
            return told["error"]["message"]
        return ModelFiles.received(told["model"], message.descriptors).read()[0]

    def broken() -> ModelFiles:
        raise InvalidModel("the file has gone")

    stranger.worker.models.update({1: partial(model_of, b"one"), 2: broken})
    gone = "its graph is not to be had any more; load it again"
    assert [ask(number) for number in (1, 1, 2, 3)] == [b"one", gone, "the file has gone", gone]
    assert not stranger.worker.models


def test_a_worker_may_end_while_a_graph_is_made_for_it(stranger: Stranger) -> None:
    begun, ended, made = (threading.Event() for _ in range(3))

    def make() -> ModelFiles:
        begun.set()
        assert ended.wait(PATIENCE_SECONDS)
        made.set()
        return model_of(b"late")

    stranger.worker.models.update({1: make, 2: make})
    stranger.control.send(packed({"model": 1}))
    assert begun.wait(PATIENCE_SECONDS)
    stranger.worker.kill()
    stranger.control.shutdown()
    stranger.worker.join()
    assert not stranger.worker.models
    ended.set()
    assert made.wait(PATIENCE_SECONDS)


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
