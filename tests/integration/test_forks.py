"""What a program's clients do in a child that it has forked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from headrace.testing import networks
from tests.integration.harness import BASIC, CALL_SECONDS, Server

ADD = networks.add()
ERROR: Final = "this belongs to the process that this one was forked from"
PROGRAM: Final = """
import asyncio, os, sys
import numpy as np
from headrace.client import Client, aio

address, act = sys.argv[1:]
x = {"x": np.ones((2, 3), np.float32), "y": np.ones((2, 3), np.float32)}
client = Client(address)
network = client.network("add")
network.infer(x)
balanced = Client([address], balance=True)
apart = balanced.network("add")
apart.infer(x)
asynchronous = aio.Client(address)
begun = network.start_async(x)
many = iter(network.infer_many([x] * 3))
child = os.fork()
if child == 0:
    try:
        exec(act)
        told = "nothing"
    except Exception as error:
        told = str(error)
    print(told)
    sys.exit(0)
os.waitpid(child, 0)
assert np.array_equal(network.infer(x)["z"], begun.result()["z"])
assert len(list(many)) == 3
client.close()
balanced.close()
print("fine")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*BASIC) as running:
        running.load(ADD, "CPU")
        yield running


def outcome(server: Server, act: str) -> list[str]:
    """What the child says, and then its parent."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, server.address, act]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize(
    "act",
    [
        "client.networks()",
        "network.infer(x)",
        "network.start_async(x).result()",
        "assert len(list(network.infer_many([x] * 3))) == 3",
        "apart.infer(x)",
        "balanced.network('add')",
        "assert len(list(apart.infer_many([x] * 3))) == 3",
        "asyncio.run(asynchronous.networks())",
        "client.close(); balanced.close()",
    ],
)
def test_a_childs_calls_have_connections_of_their_own_and_its_parent_goes_on(
    server: Server, act: str
) -> None:
    assert outcome(server, act) == ["nothing", "fine"]


@pytest.mark.parametrize("act", ["begun.wait(); begun.result()", "next(many)"])
def test_what_is_in_flight_belongs_to_the_parent(server: Server, act: str) -> None:
    told, parent = outcome(server, act)
    assert told.startswith(ERROR)
    assert parent == "fine"


@pytest.mark.parametrize(
    "act",
    [
        "",
        "client.close(); balanced.close(); asyncio.run(asynchronous.close()); begun.cancel()",
        "del client, network, balanced, apart, begun, many",
    ],
)
def test_a_child_ends_and_takes_nothing_from_its_parent(server: Server, act: str) -> None:
    assert outcome(server, act) == ["nothing", "fine"]
