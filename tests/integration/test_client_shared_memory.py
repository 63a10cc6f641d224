"""Both clients through shared memory: the same results as in messages, whatever happens."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from headrace.client import Client, Network, errors
from headrace.client.aio import Client as AioClient
from headrace.client.shared_memory import pool, segment
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import CALL_SECONDS, Server, assert_settled, is_running, until
from tests.support.child import Child
from tests.support.client_fake import KINDS, connected
from tests.support.patience import DEADLINES

SHAPE = (40, 1024)  # 160 KiB of float32, because some machines have a small /dev/shm
DOUBLE = parse("double (float[n,m] x) => (float[n,m] y) { y = Add(x, x) }")
FIXED = parse("fixed (float[40,1024] x) => (float[40,1024] y) { y = Add(x, x) }")
EXPAND = parse(
    "expand (int64[2] x) => (float[n,m] y) { one = Constant<value = float {1.0}>() "
    "y = Expand(one, x) }"
)
ENDLESS = parse("""endless (float[40,1024] x) => (float[40,1024] y) {
    yes = Constant<value = bool {1}>()
    none = Constant<value = int64 {9223372036854775807}>()
    y = Loop(none, yes, x) <body = body
        (int64 i, bool go, float[40,1024] v) => (bool more, float[40,1024] next) {
            more = Identity(go)
            next = Neg(v)
        }
    >
}""")
KEPT = parse(
    "kept (float[40,1024] x, float[40,1024] total) => (float[40,1024] y, float[40,1024] next) { "
    "next = Add(x, total) y = Identity(next) }"
)
MODELS = {"double": DOUBLE, "fixed": FIXED, "expand": EXPAND, "endless": ENDLESS}


@pytest.fixture(scope="module")
def sharing() -> Iterator[Server]:
    with Server("--devices", "CPU", "--allow-client-shared-memory") as running:
        for name, model in MODELS.items():
            running.load(Case(name, model, {}), "CPU")
        running.load(Case("kept", KEPT, {}), "CPU", config={"STATES": "total=next"})
        yield running
        assert_settled(running)
        assert running.stop() == 0
        assert "internal error" not in running.log().lower(), running.log()


@pytest.fixture(autouse=True)
def nothing_is_left(sharing: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(segment, "PREFIX", f"headrace-test-{secrets.token_hex(8)}-")
    monkeypatch.setattr(pool, "_SMALLEST_BYTES", 64 << 10)
    yield
    gc.collect()
    assert files() == set()
    until(lambda: sharing.metric("NUMBER_OF_EXEC_INFER_REQUESTS", "CPU") == 0, "all was to end")


def files() -> set[str]:
    """The segments of this test's clients."""
    return {path.name for path in segment.FOLDER.glob(f"{segment.PREFIX}*")}


def regions(server: Server) -> list[str]:
    reply = server.stub.ListSharedMemory(pb.ListSharedMemoryRequest(), timeout=CALL_SECONDS)
    return [each.name for each in reply.regions]


def test_results_are_the_same_and_own_their_memory(sharing: Server, spied: list[bool]) -> None:
    x = networks.random(*SHAPE)
    with Client(sharing.address, shared_memory=True) as client:
        for name in ("double", "fixed"):
            network = client.network(name)
            first = [network.infer({"x": x})["y"] for _ in range(3)]
            network.infer({"x": -x})  # into the same segment
            for y in first:
                np.testing.assert_array_equal(y, x + x)
        assert len(regions(sharing)) == 1, "one caller needs one segment"
    assert spied == [True] * 8
    assert regions(sharing) == []


def test_a_request_below_the_border_stays_in_its_message(
    sharing: Server, spied: list[bool]
) -> None:
    with Client(sharing.address, shared_memory=True) as client:
        x = networks.random(10, 10)
        y = client.network("double").infer({"x": x})["y"]
        np.testing.assert_array_equal(y, x + x)
        assert regions(sharing) == []
    assert spied == [False]


def test_arrays_of_any_order_are_sent(sharing: Server, spied: list[bool]) -> None:
    x = networks.random(*SHAPE)
    with Client(sharing.address, shared_memory=True) as client:
        network = client.network("double")
        for array in (x.T, x[::-1, ::-1], x.astype(">f4")):
            y = network.infer({"x": array})["y"]
            np.testing.assert_array_equal(y, np.asarray(array + array, np.float32))
    assert all(spied)


def test_outputs_of_unknown_size_are_shared_once_it_is_known(
    sharing: Server, spied: list[bool]
) -> None:
    """A size that has changed is sent for again: no request fails of it."""
    with Client(sharing.address, shared_memory=True) as client:
        network = client.network("expand")
        for rows in (80, 80, 40, 160, 160):
            y = network.infer({"x": np.array([rows, 1024])})["y"]
            assert y.shape == (rows, 1024)
            assert (y == 1).all()
    # The second has a size to go by, and the third less than that. The fourth does not fit, and is
    # sent again; the fifth has the new size.
    assert spied == [False, True, True, False, True]


def test_a_server_that_does_not_allow_it_is_asked_once(
    server: Server, spied: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.load(Case("shared_double", DOUBLE, {}), "CPU")
    x = networks.random(*SHAPE)
    asked = []
    with Client(server.address, shared_memory=True) as client:
        ask = client.calls.ask

        def spy(method: str, *arguments: Any, **options: Any) -> Any:
            asked.append(method)
            return ask(method, *arguments, **options)

        monkeypatch.setattr(client.calls, "ask", spy)
        network = client.network("shared_double")
        for _ in range(3):
            np.testing.assert_array_equal(network.infer({"x": x})["y"], x + x)
        np.testing.assert_array_equal(network.start_async({"x": x}).result()["y"], x + x)
    assert asked.count("RegisterSharedMemory") == 1
    assert spied.count(True) == 0
    server.unload("shared_double")


def test_a_region_that_the_server_has_lost_is_done_without(
    sharing: Server, spied: list[bool]
) -> None:
    x = networks.random(*SHAPE)
    with Client(sharing.address, shared_memory=True) as client:
        network = client.network("fixed")
        network.infer({"x": x})
        request = pb.UnregisterSharedMemoryRequest()
        for infer in (network.infer, lambda inputs: network.start_async(inputs).result()):
            sharing.stub.UnregisterSharedMemory(request, timeout=CALL_SECONDS)
            np.testing.assert_array_equal(infer({"x": x})["y"], x + x)
            np.testing.assert_array_equal(network.infer({"x": x})["y"], x + x)
    assert spied == [True, False, True, False, True]


def test_without_room_in_dev_shm_tensors_travel_in_messages(
    sharing: Server, spied: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    x = networks.random(*SHAPE)
    with Client(sharing.address, shared_memory=True) as client:
        np.testing.assert_array_equal(client.network("double").infer({"x": x})["y"], x + x)
    assert spied == [False]


def test_threads_share_the_segments(sharing: Server, spied: list[bool]) -> None:
    """There are up to 16 segments. A thread that gets none sends its tensors in the message."""
    with Client(sharing.address, shared_memory=True) as client:
        network = client.network("double")

        def ask(number: int) -> None:
            x = np.full(SHAPE, number, np.float32)
            for _ in range(5):
                y = network.infer({"x": x})["y"]
                assert (y == 2 * number).all()

        with ThreadPoolExecutor(24) as executor:
            list(executor.map(ask, range(48)))
        assert 1 <= len(regions(sharing)) <= 16
    assert len(spied) == 240
    assert any(spied)


def test_started_requests_have_segments_of_their_own(sharing: Server, spied: list[bool]) -> None:
    """Their arrays may change at once, and their results are not each other's."""
    with Client(sharing.address, shared_memory=True) as client:
        network = client.network("fixed")
        x = np.zeros(SHAPE, np.float32)
        network.infer({"x": x})  # has a segment registered
        requests = []
        for number in range(20):
            x[:] = number
            requests.append(network.start_async({"x": x}))
        for number, request in enumerate(requests):
            assert request.wait(CALL_SECONDS)
            assert (request.result()["y"] == 2 * number).all()
            assert request.done()
    assert spied.count(True) > 1


def blocked(server: Server, start: Callable[[], Any]) -> Any:
    """A started request of the network that never ends, once it runs."""
    request = start()
    until(lambda: is_running(server, "CPU"), "the request was to run")
    return request


def test_the_segment_of_a_request_that_was_given_up_is_not_used_again(sharing: Server) -> None:
    """The server may still write to it."""
    x = networks.random(*SHAPE)
    with Client(sharing.address, shared_memory=True) as client:
        network, endless = client.network("double"), client.network("endless")
        network.infer({"x": x})
        (first,) = files()
        for seconds in DEADLINES:  # until the request is on its way in its time
            with pytest.raises(errors.DeadlineExceeded):
                endless.infer({"x": x}, timeout=seconds)
            if first not in files():
                break
        assert first not in files()
        until(lambda: sharing.metric("NUMBER_OF_EXEC_INFER_REQUESTS", "CPU") == 0)
        network.infer({"x": x})
        (second,) = files()
        request = blocked(sharing, lambda: endless.start_async({"x": x}))
        assert not request.wait(0)
        request.cancel()
        with pytest.raises(errors.Cancelled):
            request.result()
        until(lambda: second not in files(), "the segment was to be dropped")
        np.testing.assert_array_equal(network.infer({"x": x})["y"], x + x)
        until(lambda: len(regions(sharing)) == 1, "the server was to forget removed files")


def test_a_request_that_the_server_refuses_gives_its_segment_back(sharing: Server) -> None:
    with Client(sharing.address, shared_memory=True) as client:
        network = client.network("fixed")
        x = networks.random(*SHAPE)
        network.infer({"x": x})
        before = files()
        sharing.load(Case("gone", FIXED, {}), "CPU")
        gone = client.network("gone")
        sharing.unload("gone")
        for infer in (gone.infer, lambda inputs: gone.start_async(inputs).result()):
            with pytest.raises(errors.NotFound):
                infer({"x": x})
        assert files() == before
        network.infer({"x": x})
        assert files() == before


@pytest.mark.native_front_end("regions of a call that was given up last stay until the next client")
def test_the_asyncio_client_shares_memory_too(sharing: Server, spied: list[bool]) -> None:
    async def scenario() -> None:
        async with AioClient(sharing.address, shared_memory=True) as client:
            network = await client.network("fixed")
            endless = await client.network("endless")

            async def ask(number: int) -> None:
                x = np.full(SHAPE, number, np.float32)
                y = (await network.infer({"x": x}))["y"]
                assert (y == 2 * number).all()
                request = network.start_async({"x": x})
                x[:] = -1
                assert ((await request.result())["y"] == 2 * number).all()

            await asyncio.gather(*map(ask, range(20)))
            assert 1 <= len(regions(sharing)) <= 16
            x = networks.random(*SHAPE)
            held = files()
            for seconds in DEADLINES:  # until the request is on its way in its time
                with pytest.raises(errors.DeadlineExceeded):
                    await endless.infer({"x": x}, timeout=seconds)
                if held - files():
                    break
            assert len(held - files()) == 1
            until(lambda: sharing.metric("NUMBER_OF_EXEC_INFER_REQUESTS", "CPU") == 0)
            held = files()
            await give_up(sharing, endless.infer({"x": x}))
            assert len(held - files()) == 1

    asyncio.run(scenario())
    assert any(spied)
    until(lambda: not regions(sharing))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_flight", [1, 8])
def test_many_requests_over_one_stream_share_memory(
    sharing: Server, spied: list[bool], kind: str, in_flight: int
) -> None:
    x = np.zeros(SHAPE, np.float32)

    def inputs() -> Iterator[dict[str, Any]]:
        for number in range(20):
            x[:] = number  # the array may change when the next is drawn
            yield {"x": x}

    with connected(kind, sharing.address, shared_memory=True) as client:
        network = client.network("fixed")
        network.infer({"x": x})  # has a segment registered
        del spied[:]
        found = dict(network.infer_many(inputs(), in_flight=in_flight))
        assert sorted(found) == list(range(20))
        assert all((found[number]["y"] == 2 * number).all() for number in range(20))
        assert 1 <= len(regions(sharing)) <= in_flight
    assert spied == [True] * 20 if in_flight == 1 else any(spied)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_a_stream_whose_memory_the_server_has_lost_are_sent_again(
    sharing: Server, spied: list[bool], kind: str
) -> None:
    def inputs() -> Iterator[dict[str, Any]]:
        for number in range(4):
            unregister = sharing.stub.UnregisterSharedMemory
            unregister(pb.UnregisterSharedMemoryRequest(), timeout=CALL_SECONDS)
            yield {"x": np.full(SHAPE, number, np.float32)}

    with connected(kind, sharing.address, shared_memory=True) as client:
        network = client.network("fixed")
        network.infer({"x": np.zeros(SHAPE, np.float32)})
        found = dict(network.infer_many(inputs(), in_flight=1))
        assert [float(found[number]["y"][0, 0]) for number in range(4)] == [0, 2, 4, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_a_stream_has_learnt_are_used(
    sharing: Server, spied: list[bool], kind: str
) -> None:
    rows = [80, 80, 40, 160, 160]
    with connected(kind, sharing.address, shared_memory=True) as client:
        client.network("double").infer({"x": np.zeros((160, 1024), np.float32)})
        network = client.network("expand")
        given = [{"x": np.array([each, 1024])} for each in rows]
        found = dict(network.infer_many(given, in_flight=1))
        assert [found[index]["y"].shape[0] for index in range(5)] == rows
    assert spied == [True, True, True, True], "of double, and all but two of the stream's"


async def give_up(server: Server, coming: Any) -> None:
    """Cancels what waits for a reply, once its request runs."""
    asking = asyncio.ensure_future(coming)
    await asyncio.to_thread(until, lambda: is_running(server, "CPU"))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_closed_early_uses_its_memory_no_more(sharing: Server, kind: str) -> None:
    x = networks.random(*SHAPE)
    with connected(kind, sharing.address, shared_memory=True) as client:
        client.network("fixed").infer({"x": x})
        (held,) = files()
        many = client.network("endless").infer_many([{"x": x}, {"x": x}], in_flight=1)
        if kind == "aio":
            many.runner.run(give_up(sharing, anext(many.inner)))
            many.close()
        else:
            with ThreadPoolExecutor(1) as executor:
                asking = executor.submit(next, many)
                until(lambda: is_running(sharing, "CPU"))
                many.close()
                with pytest.raises(errors.Cancelled):
                    asking.result(CALL_SECONDS)
        assert held not in files()


@pytest.mark.parametrize("kind", KINDS)
def test_sessions_share_memory(sharing: Server, spied: list[bool], kind: str) -> None:
    given = [{"x": np.full(SHAPE, number, np.float32)} for number in range(6)]
    with connected(kind, sharing.address, shared_memory=True) as client:
        client.network("fixed").infer(given[0])  # has a segment registered
        network = client.network("kept")
        session = network.session()
        del spied[:]
        sums = [session.infer(each)["y"][0, 0] for each in given]
        assert spied == [True] * 6
        requests = [session.start_async(each) for each in given]
        sums += [each.result()["y"][0, 0] for each in requests]
        del spied[:]
        for in_flight in (1, 3):
            for _, outputs in session.infer_many(given, in_flight=in_flight):
                sums.append(outputs["y"][0, 0])
        assert spied[:6] == [True] * 6
        session.end()
        assert sums == [15 * (k // 6) + (k % 6) * (k % 6 + 1) // 2 for k in range(24)]
        segments: pool.RegionPool = client.pool

        def all_are_back() -> bool:
            client.network("fixed").infer(given[0])  # one more may be on its way from the server
            return len(segments._idle) == len(segments._all)

        until(all_are_back, "all segments were to come back")
        assert 1 <= len(files()) <= 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_of_a_session_that_was_not_sent_gives_its_segment_back(
    sharing: Server, kind: str
) -> None:
    x = {"x": networks.random(*SHAPE)}
    with connected(kind, sharing.address, shared_memory=True) as client:
        client.network("fixed").infer(x)
        held = files()
        session = client.network("kept").session()
        first = session.start_async(x, timeout=0.0)
        with pytest.raises(errors.DeadlineExceeded):
            first.result()
        assert files() == held
        client.network("fixed").infer(x)
        assert files() == held


CHILD = """
import sys
import numpy as np
from headrace.client import Client
from headrace.client.shared_memory import segment
segment.PREFIX = sys.argv[2]
client = Client(sys.argv[1], shared_memory=True)
x = np.ones((40, 1024), np.float32)
assert (client.network("double").infer({"x": x})["y"] == 2).all()
print("ready", flush=True)
sys.stdin.readline()
"""


def child(server: Server) -> Child:
    """A process whose client has a segment, and is never closed."""
    process = Child(CHILD, server.address, segment.PREFIX)
    assert process.line() == "ready"
    return process


def test_nothing_is_left_of_a_client_that_was_not_closed(sharing: Server) -> None:
    with child(sharing) as process:
        assert len(files()) == 1
        assert process.finish() == 0
    assert files() == set()


def test_what_a_killed_client_has_left_goes_with_the_next_client(sharing: Server) -> None:
    with child(sharing) as living, child(sharing) as killed:
        left = files()
        assert len(left) == 2
        killed.kill()
        assert files() == left
        with Client(sharing.address, shared_memory=True) as client:
            client.network("double").infer({"x": networks.random(*SHAPE)})
            assert len(files() & left) == 1
            until(lambda: len(regions(sharing)) == 2, "the server was to forget it as well")
        assert len(files()) == 1, "the living one's is still there"
        assert living.finish() == 0


def test_a_forked_process_leaves_its_parent_s_segments_alone(sharing: Server) -> None:
    script = """
import os, sys
import numpy as np
from headrace.client.shared_memory.pool import RegionPool
pool = RegionPool()
segment = pool.make(100)
pool.give(segment)
child = os.fork()
if not child:
    alone = pool.take(10) is None and pool.make(10) is None and pool.close() == []
    sys.exit(0 if alone else 1)
assert os.waitpid(child, 0)[1] == 0
assert os.path.exists("/dev/shm/" + segment.name)
assert pool.take(10) is segment
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=CALL_SECONDS)


def test_no_thread_waits_for_a_closed_client_s_segments(sharing: Server) -> None:
    """A request in flight while its client is closed."""
    client = Client(sharing.address, shared_memory=True)
    x = networks.random(*SHAPE)
    endless: Network = client.network("endless")
    client.network("double").infer({"x": x})
    request = blocked(sharing, lambda: endless.start_async({"x": x}))
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(CALL_SECONDS)
    assert not closing.is_alive()
    with pytest.raises(errors.Error):
        request.result()
    until(lambda: not regions(sharing))
