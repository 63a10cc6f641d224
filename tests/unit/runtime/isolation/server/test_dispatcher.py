"""Requests go to a worker without a waiting thread, and fare as all others do."""

from __future__ import annotations

import errno
import math
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any, NoReturn

import numpy as np
import pytest

from headrace.ipc.link import Link
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import Cancelled, EndedWorker, ResourceExhausted, Unavailable
from headrace.runtime.execution.job import Job, Outcome
from headrace.runtime.isolation.server import dispatcher as dispatcher_module
from headrace.runtime.isolation.server import network as isolated_network
from headrace.runtime.isolation.server import process
from headrace.runtime.isolation.server.dispatcher import WorkerDispatcher
from headrace.runtime.isolation.server.exchange import NetworkExchange
from headrace.runtime.isolation.server.plugin import IsolatedPlugin
from headrace.runtime.network.network import Network
from headrace.runtime.system.backoff import Backoff
from headrace.testing.case import network_of, parse
from headrace.testing.leaks import no_leaks
from headrace.testing.occupied import eventually, occupied
from headrace.testing.services import services as real_services
from tests.support.crashing_device import CRASH, STALL
from tests.support.patience import PATIENCE_SECONDS
from tests.support.thread_readers import ThreadReaders, thread_readers

_PATH = "tests.support.crashing_device:create_plugin"
_RELU = parse("g (float[n] x) => (float[n] y) { y = Relu(x) }").SerializeToString()


class Requests:
    """Jobs to one network, and the threads that settled them."""

    def __init__(self, network: ExecutableNetwork) -> None:
        self._network = network
        self._settled: Queue[tuple[Job, threading.Thread]] = Queue()

    def start(self, *values: Any, inline: bool = True, profile: bool = False) -> Job:
        job = Job(
            {"x": np.ravel(values).astype(np.float32)},
            lambda job: self._settled.put((job, threading.current_thread())),
            output_names=("y",),
            may_run_inline=inline,
            profile=profile,
        )
        self._network.submit(job)
        return job

    def next(self) -> tuple[Job, threading.Thread]:
        return self._settled.get(timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def readers() -> Iterator[ThreadReaders]:
    with thread_readers() as found:
        yield found


@contextmanager
def device(readers: ThreadReaders) -> Iterator[IsolatedPlugin]:
    backoff = Backoff(first=0.01, longest=0.5)
    config = {"NUM_STREAMS": "1", "PERF_COUNT": "NO"}
    with no_leaks(), real_services() as offered:
        services = replace(offered, readers=readers)
        found = IsolatedPlugin("FRAGILE", services, config, _PATH, backoff=backoff)
        services.states.set("FRAGILE", DeviceState.UP)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(scope="module")
def plugin(readers: ThreadReaders) -> Iterator[IsolatedPlugin]:
    """One for all tests whose worker lives on. Its threads have started."""
    with device(readers) as found:
        network = load(found)
        warm(Requests(network))
        network.close()
        yield found


@pytest.fixture
def mortal(readers: ThreadReaders) -> Iterator[IsolatedPlugin]:
    """One whose worker ends."""
    with device(readers) as found:
        yield found


@pytest.fixture
def network(plugin: IsolatedPlugin) -> Iterator[ExecutableNetwork]:
    found = load(plugin)
    yield found
    found.close()


def load(plugin: IsolatedPlugin) -> ExecutableNetwork:
    return plugin.load_network(Load(Network.from_bytes(_RELU), {}))


def warm(requests: Requests) -> None:
    """Until it is known how long a run takes."""
    requests.start(1.0)
    requests.next()


@pytest.mark.parametrize("size", [2, 3_000, 20_000, 200_000])
def test_requests_are_dispatched_and_their_answers_are_right(
    network: ExecutableNetwork, readers: ThreadReaders, size: int
) -> None:
    requests = Requests(network)
    for _ in range(2):
        rows = np.full((40, size), -1.0, np.float32)
        rows[:, 0] = range(40)
        jobs = {requests.start(row): number for number, row in enumerate(rows)}
        for _ in range(40):
            job, thread = requests.next()
            assert thread is readers.thread
            assert job.outcome is Outcome.COMPLETED
            y: Any = job.outputs["y"]
            assert (y.size, y[0], y.sum()) == (size, *[jobs.pop(job)] * 2)
            assert job.queued <= job.started <= job.prepared <= job.inferred <= job.finished
        assert not jobs


def test_a_request_to_an_idle_stream_is_sent_by_the_functions_that_decide_and_no_others(
    network: ExecutableNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, stacks = Requests(network), list[list[str]]()
    warm(requests)
    send = Link.send

    def counted(link: Link, *arguments: Any) -> None:
        names = [each.name for each in traceback.extract_stack()[:-1]]
        stacks.append(names[names.index("start") + 1 :])
        send(link, *arguments)

    executor = network.executor
    assert executor is not None
    eventually(lambda: executor.busy == 0, "an idle stream")
    monkeypatch.setattr(Link, "send", counted)
    requests.start(1.0)
    requests.next()
    assert stacks == [["submit", "submit", "start", "start", "dispatch", "ask"]]


def test_waiting_requests_go_along_and_each_runs_once(
    network: ExecutableNetwork, readers: ThreadReaders
) -> None:
    requests, sizes = Requests(network), []
    warm(requests)
    dispatcher = network._runner.dispatcher
    assert dispatcher is not None
    dispatch = dispatcher.dispatch

    def counted(jobs: list[Job], on_answer: object) -> bool:
        sizes.append(len(jobs))
        return dispatch(jobs, on_answer)  # type: ignore[arg-type]

    dispatcher.dispatch = counted  # type: ignore[method-assign, assignment]
    dispatcher.most_others = lambda: 3  # type: ignore[method-assign]
    with occupied(network):
        jobs = [requests.start(float(number)) for number in range(9)]
    found = [requests.next()[0] for _ in jobs]
    assert found == jobs  # in the order in which they came
    # The first leaves alone with the stream's thread, or with the others.
    assert sum(sizes) == 9
    assert max(sizes) == 4


@pytest.mark.parametrize("inline", [True, False], ids=["dispatched", "waits"])
@pytest.mark.parametrize("error", [OSError(errno.EMFILE, ""), MemoryError()], ids=repr)
def test_a_system_that_has_run_out_of_something_costs_requests_and_no_stream(
    mortal: IsolatedPlugin, monkeypatch: pytest.MonkeyPatch, error: Exception, inline: bool
) -> None:
    """The worker is one that has no lanes yet."""
    network = load(mortal)
    requests = Requests(network)

    def none_left() -> NoReturn:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(process, "links", none_left)
        for _ in range(3):
            requests.start(1.0, inline=inline)
            job, _ = requests.next()
            assert isinstance(job.error, ResourceExhausted)
    requests.start(1.0, inline=inline)
    assert requests.next()[0].outcome is Outcome.COMPLETED
    network.close()


def test_a_dispatcher_that_raises_costs_no_stream(network: ExecutableNetwork) -> None:
    requests = Requests(network)
    dispatcher = network._runner.dispatcher
    assert dispatcher is not None

    def raises(*_: object) -> NoReturn:
        raise MemoryError

    dispatcher.dispatch = raises  # type: ignore[method-assign, assignment]
    dispatcher.most_others = raises  # type: ignore[method-assign]
    for _ in range(3):
        requests.start(1.0)
    for _ in range(3):
        assert requests.next()[0].outcome is Outcome.COMPLETED


@pytest.mark.parametrize("case", ["very large", "profile", "may wait"])
def test_other_requests_take_the_stream_and_the_two_do_not_disturb_each_other(
    network: ExecutableNetwork, readers: ThreadReaders, case: str
) -> None:
    requests = Requests(network)
    others = {"very large": 300_000, "profile": 3, "may wait": 3}
    jobs = {}
    for number in range(20):
        dispatched = number % 2 == 0
        values = [float(number)] * (3 if dispatched else others[case])
        options = {} if dispatched else {"profile": case == "profile", "inline": case != "may wait"}
        jobs[requests.start(*values, **options)] = number
    for _ in range(20):  # two threads settle them, so the order may change
        job, thread = requests.next()
        number = jobs.pop(job)
        assert set(job.outputs["y"].tolist()) == {number}  # type: ignore[union-attr]
        if number % 2 or case != "very large":  # one such answer makes another likely
            assert (thread is readers.thread) == (number % 2 == 0)


def test_a_request_that_ends_the_worker_alone_is_told_so(mortal: IsolatedPlugin) -> None:
    requests = Requests(load(mortal))
    requests.start(CRASH)
    job, _ = requests.next()
    assert isinstance(job.error, EndedWorker)
    eventually(lambda: _answers(requests), "the next worker")


def test_requests_that_were_under_way_when_the_worker_ended_may_be_sent_again(
    mortal: IsolatedPlugin,
) -> None:
    network = load(mortal)
    requests = Requests(network)
    warm(requests)
    assert network._runner.dispatcher is not None
    network._runner.dispatcher.most_others = lambda: 7  # type: ignore[method-assign]
    with occupied(network):
        jobs = [requests.start(value) for value in (1.0, CRASH, 2.0, 3.0)]
    for _ in jobs:
        job, _ = requests.next()
        if job.outcome is not Outcome.COMPLETED:
            assert isinstance(job.error, Unavailable)
            assert not isinstance(job.error, EndedWorker)
            assert job.error.retry_delay_seconds
    eventually(lambda: _answers(requests), "the next worker")


def test_a_run_that_ignores_its_timeout_ends_the_worker_and_blames_no_request_behind_it(
    mortal: IsolatedPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_network, "_PATIENCE_SECONDS", 0.05)
    network = load(mortal)
    requests = Requests(network)
    network.set_config({"EXECUTION_TIMEOUT": "2"})
    assert network._runner.dispatcher is not None
    network._runner.dispatcher.most_others = lambda: 7  # type: ignore[method-assign]
    with occupied(network):
        hanging = requests.start(STALL)
        behind = [requests.start(1.0) for _ in range(3)]
    found = [requests.next()[0] for _ in range(4)]
    assert hanging in found
    assert hanging.outcome is Outcome.EXPIRED
    for job in behind:
        assert isinstance(job.error, Unavailable), job.error
    eventually(lambda: _answers(requests), "the next worker")


def test_a_cancelled_request_does_not_run_and_lets_those_behind_it_run(
    plugin: IsolatedPlugin, network: ExecutableNetwork
) -> None:
    requests = Requests(network)
    warm(requests)
    assert network._runner.dispatcher is not None
    network._runner.dispatcher.most_others = lambda: 7  # type: ignore[method-assign]
    with occupied(network):
        jobs = [requests.start(float(number)) for number in range(4)]
        jobs[1].token.cancel(Cancelled("nobody wants it"))
    outcomes = {id(requests.next()[0]) for _ in jobs}
    assert outcomes == set(map(id, jobs))
    assert [job.outcome for job in jobs] == [
        Outcome.COMPLETED,
        Outcome.CANCELLED,
        Outcome.COMPLETED,
        Outcome.COMPLETED,
    ]


def _answers(requests: Requests) -> bool:
    try:
        requests.start(5.0)
    except Unavailable:
        return False
    job, _ = requests.next()
    return job.outcome is Outcome.COMPLETED


def test_an_idle_worker_unmaps_what_the_server_has_dropped(
    network: ExecutableNetwork,
) -> None:
    requests = Requests(network)
    requests.start(*[1.0] * 300_000)
    job, _ = requests.next()
    assert network._runner.dispatcher is not None
    dispatcher: Any = network._runner.dispatcher
    worker = dispatcher.network.loaded.worker
    mapped = Path(f"/proc/{worker._process.pid}/maps")
    assert "memfd:" in mapped.read_text()
    job.outputs = {}
    worker.pool.clear()
    worker.ask("pulse").result(PATIENCE_SECONDS)
    # The thread that has sent the answer may still be about to let go of its arrays.
    eventually(lambda: "memfd:" not in mapped.read_text(), "the memory to be unmapped")


@pytest.mark.parametrize(
    ("outputs", "nodes"),
    [
        ("float[N] y, seq(float[N]) z", "y = Relu(x) z = SequenceConstruct(x)"),
        ("float[N] y, string[N] z", "y = Relu(x) z = Cast<to = 8>(x)"),
        (
            ", ".join(["float[N] y", *(f"float[N] y{i}" for i in range(64))]),
            " ".join(["y = Relu(x)", *(f"y{i} = Relu(x)" for i in range(64))]),
        ),
    ],
    ids=["a sequence", "texts", "many"],
)
def test_answers_that_may_take_long_to_read_are_read_on_the_threads_of_streams(
    plugin: IsolatedPlugin, readers: ThreadReaders, outputs: str, nodes: str
) -> None:
    model = parse(f"g (float[N] x) => ({outputs}) {{ {nodes} }}")
    requests = Requests(plugin.load_network(Load(network_of(model), {})))
    for _ in range(3):
        requests.start(1.0, 2.0)
        job, thread = requests.next()
        assert job.outcome is Outcome.COMPLETED
        assert thread is not readers.thread


def test_no_other_is_taken_along_while_answers_are_very_large(
    network: ExecutableNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = Requests(network)
    warm(requests)
    dispatcher = network._runner.dispatcher
    assert isinstance(dispatcher, WorkerDispatcher)
    monkeypatch.setattr(dispatcher_module, "_SMOOTHING", 0.0)  # however long the runs take here
    dispatcher._mean_seconds = 1e-4
    assert dispatcher.most_others() == 7
    requests.start(*[1.0] * 100_000)
    requests.next()
    assert dispatcher.most_others() == 7
    requests.start(*[1.0] * 300_000)
    requests.next()
    assert dispatcher.most_others() == 0


@pytest.mark.parametrize("told", [math.inf, 1e300, 0.0])
def test_a_run_takes_no_longer_than_its_request_whatever_the_worker_tells(
    network: ExecutableNetwork, monkeypatch: pytest.MonkeyPatch, told: float
) -> None:
    receive = NetworkExchange.receive

    def boasts(self: NetworkExchange, *arguments: Any) -> float:
        receive(self, *arguments)
        return told

    monkeypatch.setattr(NetworkExchange, "receive", boasts)
    requests = Requests(network)
    for _ in range(3):
        requests.start(1.0)
        job, _ = requests.next()
        assert job.outcome is Outcome.COMPLETED
        assert job.queued <= job.started <= job.prepared <= job.inferred
    dispatcher = network._runner.dispatcher
    assert dispatcher is not None
    assert 0 <= dispatcher.most_others() <= 7
