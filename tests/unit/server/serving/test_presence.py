"""Waits for networks that are not loaded."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidModel,
    NotLoaded,
    ResourceExhausted,
    StillLoading,
)
from headrace.runtime.loading.cold_loads import ColdLoads, ColdNetwork
from headrace.runtime.loading.entry import NetworkEntry, NetworkKey, Tenancy
from headrace.server.serving.presence import called_when_loaded


class Network:
    """One that is cold until its load ends. `take` counts how often it was taken."""

    def __init__(self) -> None:
        self.cold = ColdLoads()
        self.load: Future[NetworkEntry] = Future()
        self.begun: Future[str] = Future()
        self.entry = NetworkEntry(NetworkKey("m", "1", 1), "CPU", None, Tenancy(again=self.again))
        self.ready = False
        self.tries = 0
        self.awaited: object = None

    def again(self, _: NetworkEntry, who: str) -> Future[NetworkEntry]:
        load = self.load
        self.begun.set_result(who)
        return load

    def take(self) -> str:
        self.tries += 1
        if not self.ready:
            raise NotLoaded("it is cold", ColdNetwork(self.entry, self.cold))
        self.awaited = self.cold.awaited()
        return "taken"


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.cold.stop()


def test_what_is_loaded_is_taken_at_once(network: Network) -> None:
    async def scenario() -> None:
        network.ready = True
        assert await called_when_loaded(network.take) == "taken"
        assert network.tries == 1

    asyncio.run(scenario())


def test_a_cold_network_is_taken_when_it_is_loaded_and_stays_until_then(network: Network) -> None:
    async def scenario() -> None:
        taking = asyncio.create_task(called_when_loaded(network.take))
        assert await asyncio.wrap_future(network.begun) == "", "without access control"
        network.ready = True
        network.load.set_result(network.entry)
        assert await taking == "taken"
        assert network.awaited == {("m", "1")}
        assert network.cold.awaited() == set()

    asyncio.run(scenario())


def test_the_error_of_a_load_is_raised_if_the_network_stays_cold(
    network: Network,
) -> None:
    async def scenario() -> None:
        taking = asyncio.create_task(called_when_loaded(network.take))
        await asyncio.wrap_future(network.begun)
        network.load.set_exception(ResourceExhausted("no room"))
        with pytest.raises(ResourceExhausted, match="no room"):
            await taking
        assert network.cold.awaited() == set()

    asyncio.run(scenario())


def test_a_load_that_another_caller_has_cancelled_begins_anew(network: Network) -> None:
    async def scenario() -> None:
        taking = asyncio.create_task(called_when_loaded(network.take))
        await asyncio.wrap_future(network.begun)
        cancelled, network.load, network.begun = network.load, Future(), Future()
        cancelled.set_exception(Cancelled("the caller cancelled the load"))
        await asyncio.wrap_future(network.begun)
        network.ready = True
        network.load.set_result(network.entry)
        assert await taking == "taken"

    asyncio.run(scenario())


def test_the_error_of_a_load_does_not_grow_with_those_who_waited(network: Network) -> None:
    async def frames() -> int:
        try:
            await called_when_loaded(network.take)
        except RuntimeError as error:
            return len(traceback.extract_tb(error.__traceback__))
        return 0

    async def scenario() -> None:
        waiting = [asyncio.create_task(frames()) for _ in range(3)]
        await asyncio.wrap_future(network.begun)
        network.load.set_exception(RuntimeError("a bug"))
        assert len(set(await asyncio.gather(*waiting))) == 1

    asyncio.run(scenario())


def test_what_the_network_says_after_its_load_goes_first(
    network: Network,
) -> None:
    async def scenario() -> None:

        def take() -> str:
            if network.load.done():
                raise ValueError("it has failed")
            return network.take()

        taking = asyncio.create_task(called_when_loaded(take))
        await asyncio.wrap_future(network.begun)
        network.load.set_exception(InvalidModel("no model"))
        with pytest.raises(ValueError, match="it has failed"):
            await taking

    asyncio.run(scenario())


def test_a_wait_ends_at_the_deadline_and_says_when_to_try_again(network: Network) -> None:
    async def scenario() -> None:
        with pytest.raises(DeadlineExceeded, match="was not loaded within") as caught:
            await called_when_loaded(network.take, time.monotonic() + 0.01)
        assert caught.value.retry_delay_seconds
        assert network.cold.awaited() == set()

    asyncio.run(scenario())


def test_a_deadline_that_cannot_be_kept_is_told_at_once(network: Network) -> None:
    async def scenario() -> None:
        network.entry.load_seconds = 1000.0
        with pytest.raises(StillLoading) as caught:
            await called_when_loaded(network.take, time.monotonic() + 500.0)
        assert caught.value.retry_delay_seconds == 1000.0

    asyncio.run(scenario())


def test_a_caller_who_leaves_waits_no_more(network: Network) -> None:
    async def scenario() -> None:
        taking = asyncio.create_task(called_when_loaded(network.take))
        await asyncio.wrap_future(network.begun)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert network.cold.awaited() == set()

    asyncio.run(scenario())
