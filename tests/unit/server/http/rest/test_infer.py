"""Replies to requests for inference, over real sockets: who keeps their memory."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from starlette.types import Receive, Scope, Send

from headrace.runtime.execution.job import Job
from headrace.runtime.metrics.counters import Counters
from headrace.server.access.identity import Role
from headrace.server.http.application import Application
from headrace.server.http.guard import GuardedRoute
from headrace.server.http.rest.bodies import LENGTH_HEADER, Bodies
from headrace.server.http.rest.infer import Infer
from headrace.server.serving.call import InferCall, InferResult
from headrace.server.serving.serving import Serving
from headrace.testing.occupied import eventually
from tests.unit.server.http.serving import connected, serving

ELEMENTS = 1 << 23
"""32 MB of float32, more than a socket and its connection hold."""


class Backend(Serving):
    """Has computed counts from 0. Attributes: `memory` refers to what it computed into."""

    elsewhere = None

    def __init__(self) -> None:
        self.memory: weakref.ref[Any] | None = None

    async def run(self, call: InferCall, *_: Any) -> InferResult:
        output = np.arange(ELEMENTS, dtype=np.float32)
        self.memory = weakref.ref(output)
        job = Job({}, lambda _: None, output_names=("y",))
        job.outputs = {"y": output}
        return InferResult(call, job, job.outputs)


class Routed:
    """Gives the path of the model to the handler, as the route's template does."""

    def __init__(self, infer: Infer) -> None:
        self._infer = infer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._infer({**scope, "path_params": {"model": "m"}}, receive, send)


@pytest.mark.parametrize("encoding", ["", "accept-encoding: gzip\r\n"], ids=["as it is", "gzip"])
def test_a_client_that_reads_nothing_keeps_no_memory_of_a_backend(encoding: str) -> None:
    backend = Backend()
    infer = Infer(backend, Bodies(64 << 20, 512 << 20))
    route = GuardedRoute("/infer", Routed(infer), {"POST": Role.OPEN})
    body = b'{"inputs":[],"parameters":{"binary_data_output":true}}'
    head = f"POST /infer HTTP/1.1\r\n{encoding}content-length: {len(body)}\r\n\r\n".encode()
    with (
        serving(Application([], Counters(), [route])) as server,
        connected(server) as client,
    ):
        client.sendall(head + body)
        begun = client.recv(1)
        eventually(lambda: backend.memory is not None and backend.memory() is None, "it is free")
        if encoding:
            return
        reply = client.makefile("rb")
        lengths = {LENGTH_HEADER: 0, "content-length": 0}
        assert begun + reply.readline() == b"HTTP/1.1 200 OK\r\n"
        while line := reply.readline().strip():
            name, value = line.decode().split(": ", 1)
            if name in lengths:
                lengths[name] = int(value)
        reply.read(lengths[LENGTH_HEADER])
        data = reply.read(lengths["content-length"] - lengths[LENGTH_HEADER])
    np.testing.assert_array_equal(np.frombuffer(data, np.float32), np.arange(ELEMENTS))
