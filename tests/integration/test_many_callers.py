"""Requests of many callers of one client, against real servers: each keeps its own end."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.client import Client, aio, errors
from headrace.server.access.token_file import add_token, revoke_token
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    infer_request,
    is_running,
    until,
)
from tests.support.interleaving import frequent_switches

ECHO = Case("echo", parse("echo (float[N] x) => (float[N] y) { y = Identity(x) }"), {})
COPIES = ", ".join(["x"] * 40)
WIDE = Case(
    "wide", parse(f"wide (float[N] x) => (float[M] y) {{ y = Concat<axis=0>({COPIES}) }}"), {}
)
SUMS = parse(
    "s (float[1] x, float[1] h) => (float[1] y, float[1] n) { y = Add(x, h) n = Add(x, h) }"
)
ENDLESS = networks.endless()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--devices", "CPU,TEMPLATE,MULTI,HETERO,AUTO,BATCH") as running:
        running.load(ECHO, "CPU")
        running.load(ENDLESS, "TEMPLATE", "endless")
        yield running
        assert running.stop() == 0, running.log()
        assert "internal error" not in running.log().lower(), running.log()
        assert "Traceback" not in running.log(), running.log()


def x(*values: float) -> dict[str, Any]:
    return {"x": np.array(values, np.float32)}


@pytest.mark.parametrize("seed", [1])
def test_threads_get_their_own_results_among_cancels_deadlines_and_bad_requests(
    server: Server, seed: int
) -> None:
    seen: Counter[str] = Counter()
    wrong: list[object] = []

    def ask(client: Client, number: int) -> None:
        draw = random.Random(seed * 1000 + number)
        network, endless = client.network("echo"), client.network("endless")
        for step in range(15):
            mine = float(number * 1000 + step)
            kind = draw.choice(["infer", "infer", "start", "cancel", "late", "bad"])
            try:
                if kind == "infer":
                    found = network.infer(x(mine, -mine))
                elif kind == "start":
                    found = network.start_async(
                        x(mine, -mine), priority=draw.randint(-10, 10)
                    ).result()
                elif kind == "cancel":
                    request = endless.start_async(ENDLESS.inputs)
                    request.cancel()
                    found = request.result()
                elif kind == "late":
                    found = endless.infer(ENDLESS.inputs, timeout=0.02)
                else:
                    found = network.infer(x(mine), outputs=["nothing"])
            except errors.Error as error:
                seen[f"{kind} {type(error).__name__}"] += 1
                continue
            if kind not in ("infer", "start") or list(found["y"]) != [mine, -mine]:
                wrong.append((kind, mine, found))
            seen[kind] += 1

    with Client(server.address) as client, ThreadPoolExecutor(32) as threads:
        with frequent_switches():
            for each in [threads.submit(ask, client, number) for number in range(32)]:
                each.result(CALL_SECONDS)
        assert not wrong
        ends = {"cancel Cancelled", "late DeadlineExceeded", "bad InvalidArgument"}
        assert seen.keys() <= {"infer", "start"} | ends
        until(lambda: server.total("headrace_device_streams_busy", device="TEMPLATE.0") == 0)


def test_tasks_get_their_own_results(server: Server) -> None:
    async def ask(network: Any, number: int) -> None:
        for step in range(20):
            mine = float(number * 1000 + step)
            assert (await network.infer(x(mine)))["y"][0] == mine

    async def main() -> None:
        async with aio.Client(server.address) as client:
            network = await client.network("echo")
            await asyncio.gather(*(ask(network, number) for number in range(32)))

    asyncio.run(asyncio.wait_for(main(), CALL_SECONDS))


@pytest.mark.parametrize(
    "device", ["MULTI:CPU,TEMPLATE", "HETERO:TEMPLATE,CPU", "AUTO:CPU", "BATCH:CPU(4)"]
)
def test_virtual_devices_answer_the_right_request(server: Server, device: str) -> None:
    with Client(server.address) as client, ThreadPoolExecutor(8) as threads:
        network = client.load_network(ECHO.model, device=device, name="virtual")
        found = list(threads.map(lambda value: network.infer(x(value)), map(float, range(64))))
        assert [float(each["y"][0]) for each in found] == list(range(64))
        network.unload()


def test_sessions_stay_in_order_beside_each_other(server: Server) -> None:
    with Client(server.address) as client, ThreadPoolExecutor(8) as threads:
        network = client.load_network(SUMS, device="CPU", name="sums", config={"STATES": "h=n"})

        def run(step: float) -> None:
            with network.session() as session:
                for count in range(1, 20):
                    started = [session.start_async(x(step)) for _ in range(2)]
                    found = [each.result() for each in started]
                    assert [float(each["y"][0]) for each in found] == [
                        step * (2 * count - 1),
                        step * 2 * count,
                    ]

        list(threads.map(run, map(float, range(1, 9))))
        network.unload()


def test_a_request_that_waits_for_a_stream_does_not_hold_others_up(server: Server) -> None:
    with Client(server.address) as client:
        network, endless = client.network("echo"), client.network("endless")
        stuck = [endless.start_async(ENDLESS.inputs) for _ in range(4)]
        until(lambda: is_running(server, "TEMPLATE"))
        assert float(network.infer(x(2.0))["y"][0]) == 2.0
        for each in stuck:
            assert each.cancel()
        until(lambda: server.total("headrace_device_streams_busy", device="TEMPLATE.0") == 0)


def test_a_server_that_stops_gives_results_and_unavailable_only() -> None:
    with Server(*BASIC) as server, Client(server.address) as client:
        server.load(ECHO, "CPU")
        network = client.network("echo")
        gone = threading.Event()
        seen: Counter[str] = Counter()
        answered = threading.Semaphore(0)

        def ask(number: int) -> None:
            while not gone.is_set():
                try:
                    found = network.infer(x(float(number)))
                    seen["right" if found["y"][0] == number else "wrong"] += 1
                except errors.Error as error:
                    seen[type(error).__name__] += 1
                answered.release()

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for each in threads:
            each.start()
        for _ in range(200):
            assert answered.acquire(timeout=CALL_SECONDS)
        assert server.stop() == 0, server.log()
        gone.set()
        for each in threads:
            each.join(CALL_SECONDS)
        assert seen.keys() <= {"right", "Unavailable"}, seen
        assert seen["right"]
        assert "Traceback" not in server.log(), server.log()


def test_a_revoked_token_ends_requests_and_a_new_one_goes_on(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    current = [add_token(tokens, "a", ["manage"])]
    with (
        Server(*BASIC, "--tokens", str(tokens)) as server,
        Client(server.address, token=lambda: current[0]) as client,
    ):
        network = client.load_network(ECHO.model, device="CPU", name="echo")
        new = add_token(tokens, "b", ["manage"])
        revoke_token(tokens, "a")

        def refused() -> bool:
            try:
                network.infer(x(1.0))
            except errors.Unauthenticated:
                return True
            return False

        until(refused, "a revoked token was to be refused")
        current[0] = new

        def admitted() -> bool:
            try:
                return float(network.infer(x(3.0))["y"][0]) == 3.0
            except errors.Unauthenticated:  # the server has not read the file yet
                return False

        until(admitted)


def test_a_client_that_reads_nothing_is_told_its_limits_once(server: Server) -> None:
    """Questions wait in one answer, so that they take no memory."""
    ask = pb.InferStreamRequest(ask_limits=True)
    last = pb.InferStreamRequest(requests=[infer_request("echo", x(5.0), id="last")])
    call = server.stub.InferStream(iter([ask] * 500 + [last]), timeout=CALL_SECONDS)
    replies = list(call)
    assert max(reply.messages_read for reply in replies) == 501
    assert {reply.limits.in_flight for reply in replies if reply.HasField("limits")} == {256}
    assert [result.id for reply in replies for result in reply.results] == ["last"]


@pytest.mark.parametrize("size", [f"{4 << 20}", "M"], ids=["declared", "unknown"])
def test_results_that_are_much_larger_than_requests_all_find_room(size: str) -> None:
    """Also the first ones, when no result has shown yet how large they are."""
    large = parse(f"large (uint8[1] x, int64[1] n) => (uint8[{size}] y) {{ y = Expand(x, n) }}")
    requests = [
        infer_request("large", {"x": np.ones(1, np.uint8), "n": np.array([4 << 20])}, id=str(each))
        for each in range(100)
    ]
    with Server(*BASIC, "--max-stream-bytes", str(256 << 20)) as server:
        server.load(Case("large", large, {}), "CPU")
        messages = [pb.InferStreamRequest(requests=requests)]
        call = server.stub.InferStream(iter(messages), timeout=CALL_SECONDS)
        ended = Counter(result.WhichOneof("result") for reply in call for result in reply.results)
        assert ended == {"reply": 100}
        assert server.stop() == 0, server.log()
        assert "request failed" not in server.log()


def test_a_caller_that_reads_no_results_holds_up_only_itself() -> None:
    """Flow control bounds what the server runs for it. A stop that ends an idle stream is no
    failed request."""
    requests, values = 400, 2500
    result_bytes = 4 * values * 40
    with (
        Server(*BASIC, "--max-stream-bytes", str(32 << 20)) as server,
        Client(server.address) as client,
    ):
        server.load(WIDE, "CPU")
        server.load(ECHO, "CPU")
        network = client.network("echo")

        def messages() -> Iterator[pb.InferStreamRequest]:
            for number in range(requests):
                request = infer_request("wide", x(*[1.0] * values), id=str(number))
                yield pb.InferStreamRequest(requests=[request])

        call = server.stub.InferStream(messages(), timeout=CALL_SECONDS)

        def run() -> float:
            return server.total("headrace_network_requests_total", network="wide")

        until(run)
        for number in range(20):
            assert network.infer(x(float(number)))["y"][0] == number
        assert run() * result_bytes < (32 << 20) + (32 << 20), "the rest is on its way, or waits"
        ended = [
            result.id
            for reply in call
            for result in reply.results
            if result.WhichOneof("result") == "reply"
        ]
        assert sorted(ended, key=int) == [str(number) for number in range(requests)]
        assert server.stop() == 0, server.log()
        assert "request failed" not in server.log()
