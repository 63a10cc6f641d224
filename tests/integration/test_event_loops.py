"""The asyncio client on event loops: before any, on one after another, and on two at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.client import aio, errors
from headrace.testing import networks
from tests.integration.harness import BASIC, Server

ADD = networks.add()
TIMES = 20  # enough for a stream that requests share


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*BASIC) as running:
        running.load(ADD, "CPU")
        yield running


async def infer(client: aio.Client) -> None:
    network = await client.network("add")
    for _ in range(TIMES):
        np.testing.assert_array_equal((await network.infer(ADD.inputs))["z"], ADD.expected()["z"])


@pytest.mark.parametrize("balanced", [False, True])
def test_a_client_works_on_loops_that_come_after_it_one_after_another(
    server: Server, balanced: bool
) -> None:
    client = aio.Client([server.address] if balanced else server.address, balance=balanced)
    for _ in range(3):
        asyncio.run(infer(client))
    asyncio.run(client.close())


def test_a_network_outlives_the_loop_that_it_was_looked_up_on(server: Server) -> None:
    client = aio.Client(server.address)
    network = asyncio.run(client.network("add"))
    outputs = asyncio.run(network.infer(ADD.inputs))
    np.testing.assert_array_equal(outputs["z"], ADD.expected()["z"])


def test_a_client_has_a_connection_for_each_loop(server: Server) -> None:
    client = aio.Client(server.address)
    with asyncio.Runner() as first:
        first.run(infer(client))
        asyncio.run(infer(client))
        first.run(infer(client))
        first.run(client.close())


def test_a_client_is_closed_on_any_loop(server: Server) -> None:
    client = aio.Client(server.address)
    with asyncio.Runner() as first:
        first.run(infer(client))
        asyncio.run(client.close())
        with pytest.raises(errors.FailedPrecondition, match="closed"):
            first.run(infer(client))
