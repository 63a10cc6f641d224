"""What a program's clients do in a child that it has forked."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from headrace.testing import networks
from tests.integration.harness import BASIC, CALL_SECONDS, Server

ADD = networks.add()
ERROR: Final = "this belongs to the process that this one was forked from"
FINE: Final = "fine after 0"
TRIAL: Final = """
import asyncio, os, sys
import numpy as np
from headrace.client import Client, aio

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
_, status = os.waitpid(child, 0)
assert np.array_equal(network.infer(x)["z"], begun.result()["z"])
assert len(list(many)) == 3
client.close()
balanced.close()
print(f"fine after {status}", flush=True)
"""
PROGRAM: Final = """
import sys
trial, address, *acts = sys.argv[1:]
for act in acts:
    exec(trial, {"address": address, "act": act})
"""
GOES_ON: Final = (
    "client.networks()",
    "network.infer(x)",
    "network.start_async(x).result()",
    "assert len(list(network.infer_many([x] * 3))) == 3",
    "apart.infer(x)",
    "balanced.network('add')",
    "assert len(list(apart.infer_many([x] * 3))) == 3",
    "asyncio.run(asynchronous.networks())",
    "client.close(); balanced.close()",
)
IN_FLIGHT: Final = ("begun.wait(); begun.result()", "next(many)")
ENDS: Final = (
    "",
    "client.close(); balanced.close(); asyncio.run(asynchronous.close()); begun.cancel()",
    "del client, network, balanced, apart, begun, many",
)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[str]]:
    """By what a child does: what it says, and then its parent. One parent has all the children."""
    acts = (*GOES_ON, *IN_FLIGHT, *ENDS)
    with Server(*BASIC) as server:
        server.load(ADD, "CPU")
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, TRIAL, server.address, *acts]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False
        )
    assert ran.returncode == 0, ran.stderr
    told = iter(ran.stdout.splitlines())
    return {act: list(pair) for act, pair in zip(acts, zip(told, told, strict=True), strict=True)}


@pytest.mark.parametrize("act", GOES_ON)
def test_a_childs_calls_have_connections_of_their_own_and_its_parent_goes_on(
    outcomes: dict[str, list[str]], act: str
) -> None:
    assert outcomes[act] == ["nothing", FINE]


@pytest.mark.parametrize("act", IN_FLIGHT)
def test_what_is_in_flight_belongs_to_the_parent(outcomes: dict[str, list[str]], act: str) -> None:
    told, parent = outcomes[act]
    assert told.startswith(ERROR)
    assert parent == FINE


@pytest.mark.parametrize("act", ENDS)
def test_a_child_ends_and_takes_nothing_from_its_parent(
    outcomes: dict[str, list[str]], act: str
) -> None:
    assert outcomes[act] == ["nothing", FINE]
