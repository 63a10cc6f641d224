"""Clients that ask for large replies and do not read them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import psutil
import pytest

from headrace.testing.case import Case, parse
from tests.integration.harness import CALL_SECONDS, Server, until

pytestmark = pytest.mark.native_front_end("bounds what clients leave unread")

READERS = 24
ELEMENTS = 2_500_000  # 10 MB
MIB = 2**20


@pytest.fixture
def server() -> Iterator[Server]:
    with Server("--devices", "CPU") as running:
        yield running


def resident(server: Server) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


def test_memory_of_replies_that_nobody_reads_comes_back_when_the_readers_have_left(
    server: Server,
) -> None:
    text = "filled (int64[R] x) => (float[n] y) { y = ConstantOfShape(x) }"
    case = Case("filled", parse(text), {"x": np.array([ELEMENTS])})
    server.load(case, "CPU")
    host, _, port = server.http.rpartition(":")
    given = {"name": "x", "datatype": "INT64", "shape": [1], "data": [ELEMENTS]}
    wanted = {"name": "y", "parameters": {"binary_data": True}}
    body = json.dumps({"inputs": [given], "outputs": [wanted]}).encode()
    head = (
        f"POST /v2/models/filled/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    before = resident(server)
    with ExitStack() as left:
        readers = [
            left.enter_context(socket.create_connection((host, int(port)), CALL_SECONDS))
            for _ in range(READERS)
        ]
        for each in readers:
            each.sendall(head.encode() + body)
        for each in readers:
            each.recv(1)
        assert resident(server) - before > 128 * MIB
    until(lambda: resident(server) - before < 64 * MIB, "the memory was to come back")
