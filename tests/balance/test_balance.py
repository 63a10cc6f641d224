"""Servers that stop and freeze under the load of clients that balance: ``make test-balance``.

STOPS says how often a server stops, by default ten times.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from headrace.client import Client, aio, errors
from headrace.client.balancing import Balancing
from headrace.client.sync import Network
from headrace.testing import networks
from tests.integration.harness import BASIC, Server, until
from tests.reload.test_reload import Load
from tests.support.ports import held_port

pytestmark = pytest.mark.timeout(1800)

STOPS = int(os.environ.get("STOPS", "10"))
CASE = networks.add()
LEFT_SECONDS = 2.0
BATCH = 50


class Fleet:
    """Three servers on ports of their own, each of which can stop and come back."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._ports = [held_port() for _ in range(3)]
        self.servers = [self._start(port) for port in self._ports]

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]

    def _start(self, port: int) -> Server:
        server = self._stack.enter_context(Server(*BASIC, "--port", str(port)))
        server.load(CASE, "CPU")
        return server

    def restart(self, index: int) -> None:
        """Stops a server with SIGTERM, and starts another one in its place."""
        assert self.servers[index].stop() == 0, self.servers[index].log()
        self.servers[index] = self._start(self._ports[index])

    def served(self, index: int) -> float:
        return self.servers[index].total("headrace_network_requests_total", network="add")


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack)


def unary(network: Network) -> int:
    network.infer(CASE.inputs)
    return 1


def started(network: Network, batch: int = BATCH) -> int:
    for request in [network.start_async(CASE.inputs) for _ in range(batch)]:
        request.result()
    return batch


def streamed(network: Network) -> int:
    indices = set()
    for index, outcome in network.infer_many([CASE.inputs] * BATCH, in_flight=8):
        if isinstance(outcome, errors.Error):
            raise outcome
        indices.add(index)
    assert indices == set(range(BATCH))
    return BATCH


def awaited(addresses: list[str], size: int = BATCH) -> Callable[[], int]:
    """Calls of the asyncio client, which has its event loop on a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def connect() -> aio.Network:
        return await aio.Client(addresses).network("add")

    network = asyncio.run_coroutine_threadsafe(connect(), loop).result()

    async def batch() -> int:
        await asyncio.gather(*(network.infer(CASE.inputs) for _ in range(size)))
        if size == 1:
            return 1
        seen = [outcome async for _, outcome in network.infer_many([CASE.inputs] * size)]
        for outcome in seen:
            if isinstance(outcome, errors.Error):
                raise outcome
        return 2 * size

    return lambda: asyncio.run_coroutine_threadsafe(batch(), loop).result()


def load_of(client: Client, addresses: list[str]) -> Load:
    network = client.network("add")
    load = Load()
    for kind in (unary, unary, started, streamed):
        load.add(kind.__name__, lambda kind=kind: kind(network))  # type: ignore[misc]
    load.add("asyncio", awaited(addresses))
    return load


def test_no_request_fails_when_servers_stop_one_after_another(fleet: Fleet) -> None:
    with Client(fleet.addresses) as client:
        load = load_of(client, fleet.addresses)
        load.start()
        try:
            for stop in range(STOPS):
                index = stop % 3
                fleet.restart(index)
                until(lambda index=index: fleet.served(index) > 0)  # type: ignore[misc]
                print(f"stop {stop + 1}: {dict(load.answered)}, failed: {load.failed[:3]}")
        finally:
            load.stop()
    assert load.failed == []
    assert len(load.answered) == 4


def test_a_frozen_server_is_left_within_two_seconds(fleet: Fleet) -> None:
    slowest: dict[str, float] = {}

    def timed(kind: str, call: Callable[[], int]) -> Callable[[], int]:
        def run() -> int:
            started_at = time.monotonic()
            count = call()
            slowest[kind] = max(slowest.get(kind, 0.0), time.monotonic() - started_at)
            return count

        return run

    frozen = fleet.servers[0]
    with Client(fleet.addresses) as client:
        network = client.network("add")
        load = Load()
        load.add("unary", timed("unary", lambda: unary(network)))
        load.add("started", timed("started", lambda: started(network, 1)))
        load.add("streamed", timed("streamed", lambda: streamed(network)))
        load.add("asyncio", timed("asyncio", awaited(fleet.addresses, 1)))
        load.start()
        try:
            until(lambda: fleet.served(0) > 0 and len(load.answered) == 4)
            slowest.clear()
            frozen.process.send_signal(signal.SIGSTOP)
            before = load.answered.copy()
            until(lambda: all(load.answered[kind] > before[kind] + 50 for kind in before))
            while_frozen = dict(slowest)
            frozen.process.send_signal(signal.SIGCONT)
            served = fleet.served(0)
            until(lambda: fleet.served(0) > served + 100)
        finally:
            frozen.process.send_signal(signal.SIGCONT)
            load.stop()
    print(f"slowest while one server was frozen, in seconds: {while_frozen}")
    assert load.failed == []
    assert max(while_frozen.values()) < LEFT_SECONDS


def test_a_killed_server_costs_no_request_that_may_be_repeated(fleet: Fleet) -> None:
    with Client(fleet.addresses) as client:
        load = load_of(client, fleet.addresses)
        load.start()
        try:
            until(lambda: len(load.answered) == 4)
            fleet.servers[1].kill()
            before = load.answered.copy()
            until(lambda: all(load.answered[kind] > before[kind] for kind in before))
        finally:
            load.stop()
    assert load.failed == []


def test_a_hedge_hides_a_slow_server(fleet: Fleet) -> None:
    """The server is frozen, and no request waits until the client has noticed."""
    hedged = Balancing(policy="round_robin", hedge_after_seconds=0.05, retry_ratio=1.0)
    with Client(fleet.addresses, balance=hedged) as client:
        network = client.network("add")
        for _ in range(9):
            network.infer(CASE.inputs)
        fleet.servers[2].process.send_signal(signal.SIGSTOP)
        try:
            slowest = 0.0
            for _ in range(9):
                before = time.monotonic()
                network.infer(CASE.inputs)
                slowest = max(slowest, time.monotonic() - before)
        finally:
            fleet.servers[2].process.send_signal(signal.SIGCONT)
    print(f"slowest request with hedges: {slowest:.3f} s")
    assert slowest < client.fleet.options.frozen_seconds  # type: ignore[attr-defined]
