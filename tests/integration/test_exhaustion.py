"""A server that the system gives few descriptors, and a client that takes all of them."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from headrace.testing import networks
from tests.integration.harness import BASIC, CALL_SECONDS, Server, until

pytestmark = pytest.mark.native_front_end("gives places back that a client keeps")

SPARE = 40
CASE = networks.add()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(*BASIC) as running:
        running.load(CASE, "CPU")
        process = psutil.Process(running.process.pid)
        most = process.num_fds() + SPARE
        resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (most, most))
        yield running
        assert running.stop() == 0, running.log()
        assert "Traceback" not in running.log(), running.log()


@pytest.mark.parametrize("port", ["gRPC", "HTTP"])
def test_who_takes_all_descriptors_leaves_the_others_their_calls_and_gives_them_back(
    server: Server, port: str
) -> None:
    host, _, number = (server.address if port == "gRPC" else server.http).rpartition(":")
    before = psutil.Process(server.process.pid).num_fds()
    with ExitStack() as taken:
        for _ in range(2 * SPARE):
            taken.enter_context(socket.create_connection((host, int(number)), CALL_SECONDS))
            server.infer(CASE.name, CASE.inputs)
    until(lambda: psutil.Process(server.process.pid).num_fds() <= before)
    with server.connect() as fresh:
        fresh.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=CALL_SECONDS)
    assert server.load(CASE, "CPU", "another").name == "another"
