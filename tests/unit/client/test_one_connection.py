"""Requests of many callers over the one connection of a client, and what ends with it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.client import Client, errors
from headrace.wire.errors import ErrorDetails
from tests.support.client_fake import ENDLESS, KINDS, REFUSED, Fake, connected, eventually, running
from tests.support.patience import PATIENCE_SECONDS
from tests.support.ports import held_port


@pytest.fixture
def network(client: Any) -> Any:
    return client.network("echo")


def x(value: float) -> dict[str, Any]:
    return {"x": np.array([[value]], np.float32)}


def value(outputs: Any) -> float:
    return float(outputs["y"][0, 0])


def test_threads_get_their_own_results_among_failures_and_deadlines(fake: Fake) -> None:
    with Client(fake.target) as client, ThreadPoolExecutor(8) as threads:
        asked = client.network("echo")

        def ask(number: int) -> None:
            for turn in range(20):
                wanted = number * 100.0 + turn
                assert value(asked.infer(x(wanted))) == wanted
                if turn % 7 == 0:
                    with pytest.raises(errors.InvalidArgument):
                        asked.infer(x(REFUSED))
                if turn % 9 == 0:
                    with pytest.raises(errors.DeadlineExceeded):
                        asked.infer(x(ENDLESS), timeout=0.01)

        list(threads.map(ask, range(8)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_started_again_costs_no_call_that_may_be_repeated(kind: str) -> None:
    port = held_port()
    with connected(kind, f"127.0.0.1:{port}") as client:
        for number in range(5):
            with running(port):
                network = client.network("echo")
                assert value(network.infer(x(number))) == number


def test_a_request_that_the_server_could_not_take_is_sent_again(network: Any, fake: Fake) -> None:
    fake.failures.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "stopping"))
    assert value(network.infer(x(5))) == 5
    fake.failures.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "stopping"))
    assert value(network.start_async(x(6)).result()) == 6
    assert len(fake.requests("Infer")) == 4


def test_a_request_of_a_session_is_not_sent_again(client: Any, fake: Fake) -> None:
    session = client.network("stateful").session()
    assert value(session.infer(x(1))) == 1
    fake.failures.append(ErrorDetails(grpc.StatusCode.UNAVAILABLE, "no", reason="UNAVAILABLE"))
    with pytest.raises(errors.Unavailable):
        session.infer(x(2))
    assert len(fake.requests("Infer")) == 2


def test_each_request_ends_at_its_own_time(network: Any) -> None:
    timeouts = PATIENCE_SECONDS, 0.2, 0.05, PATIENCE_SECONDS
    requests = [network.start_async(x(ENDLESS), timeout=each) for each in timeouts]
    for each in (requests[2], requests[1]):
        with pytest.raises(errors.DeadlineExceeded):
            each.result()
    assert not any(requests[each].wait(0) for each in (0, 3))
    for each in (requests[0], requests[3]):
        assert each.cancel()


def test_a_new_token_goes_with_the_next_request(fake: Fake) -> None:
    token = ["first"]
    for kind in KINDS:
        with connected(kind, fake.target, token=lambda: token[0]) as client:
            network = client.network("echo")
            for each in ("second", "third"):
                token[0] = each
                network.infer(x(1))
                assert fake.tokens[-1] == f"Bearer {each}"


def test_closing_cancels_what_is_in_flight(fake: Fake) -> None:
    with Client(fake.target) as client:
        network = client.network("echo")
        request = network.start_async(x(ENDLESS))
    with pytest.raises(errors.Cancelled):
        request.result()
    with pytest.raises(errors.FailedPrecondition, match="closed"):
        network.infer(x(1))


def test_a_callback_may_call_infer(fake: Fake) -> None:
    with Client(fake.target) as client:
        network = client.network("echo")
        found: list[float] = []
        ended = threading.Event()

        def again(_: object) -> None:
            found.append(value(network.infer(x(2), timeout=PATIENCE_SECONDS)))
            ended.set()

        network.start_async(x(1)).add_done_callback(again)
        assert ended.wait(PATIENCE_SECONDS)
        assert found == [2]


def test_a_callback_that_blocks_holds_up_nobody_else(fake: Fake) -> None:
    with Client(fake.target) as client:
        network = client.network("echo")
        blocks, go_on = threading.Event(), threading.Event()

        def block(_: object) -> None:
            blocks.set()
            go_on.wait(PATIENCE_SECONDS)

        first = network.start_async(x(1))
        threading.Thread(target=first.add_done_callback, args=(block,)).start()
        assert blocks.wait(PATIENCE_SECONDS)
        assert value(network.infer(x(3))) == 3
        assert value(network.start_async(x(4)).result()) == 4
        with pytest.raises(errors.DeadlineExceeded):
            network.start_async(x(ENDLESS), timeout=0.05).result()
        go_on.set()


def test_callers_that_wait_need_no_thread(fake: Fake) -> None:
    before = set(threading.enumerate())
    with Client(fake.target) as client:
        network = client.network("echo")
        network.infer(x(1))
        list(network.infer_many([x(1)] * 3))
        new = {each.name for each in set(threading.enumerate()) - before}
    assert not any("headrace" in name for name in new)


def test_an_abandoned_client_leaves_no_thread(fake: Fake) -> None:
    before = set(threading.enumerate())
    client = Client(fake.target)
    network = client.network("echo")
    network.start_async(x(1)).result()
    assert ours(before)
    del client, network
    gc.collect()
    assert eventually(lambda: not ours(before))


@pytest.mark.parametrize("busy", [False, True])
def test_a_closed_client_has_no_thread(fake: Fake, busy: bool) -> None:
    before = set(threading.enumerate())
    client = Client(fake.target)
    network = client.network("echo")
    network.start_async(x(1)).result()
    if busy:
        for _ in range(4):
            network.start_async(x(ENDLESS))
    client.close()
    assert not ours(before)


def ours(before: set[threading.Thread]) -> list[threading.Thread]:
    return [each for each in set(threading.enumerate()) - before if "headrace" in each.name]


def test_a_callback_may_close_the_client(fake: Fake) -> None:
    client = Client(fake.target)
    network = client.network("echo")
    ended = threading.Event()

    def close(_: object) -> None:
        client.close()
        ended.set()

    request = network.start_async(x(1))
    request.add_done_callback(close)
    assert ended.wait(PATIENCE_SECONDS)
    assert value(request.result()) == 1
    with pytest.raises(errors.FailedPrecondition, match="closed"):
        network.infer(x(1))


EXITS = """
import sys, threading
import numpy as np
from headrace.client import Client
from headrace.client.exits import close_at_exit

class Bad:
    def close(self): raise ValueError

sys.setswitchinterval(1e-6)
bad = Bad()
close_at_exit(bad)
X = {"x": np.ones((1, 4), np.float32)}
client = Client(sys.argv[1])
network = client.network("echo")

def ask():
    for _ in range(6):
        network.infer(X)

threads = [threading.Thread(target=ask) for _ in range(32)]
for each in threads: each.start()
for each in threads: each.join()
if sys.argv[2] == "closed":
    client.close()
elif sys.argv[2] == "busy":
    requests = [network.start_async(X, timeout=60) for _ in range(200)]
    many = network.infer_many(X for _ in range(1000))
    next(many)
elif sys.argv[2] == "dropped":
    del client, network
"""


@pytest.mark.parametrize("how", ["closed", "open", "busy", "dropped"])
def test_a_program_exits_whatever_its_client_does(fake: Fake, how: str) -> None:
    """A thread that the interpreter froze with a lock would keep it from exiting."""
    program = [sys.executable, "-c", EXITS, fake.target, how]
    ended = subprocess.run(program, timeout=PATIENCE_SECONDS, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_call_leaves_nothing_to_the_garbage_collector(network: Any) -> None:
    """A large reply would stay until the collector comes by."""
    for ask in (network.infer, lambda inputs: network.start_async(inputs).result()):
        value(ask(x(1)))
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for number in range(10):
                value(ask(x(number)))
            gc.collect()
            ours = [each for each in gc.garbage if type(each).__module__.startswith("headrace.")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        assert not ours
