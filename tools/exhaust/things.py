"""What one identity can ask for many of.

It asks in a process of its own, and leaves by the end of the process.

Usage: things.py ADDRESS HTTP-ADDRESS TOKEN THING MANY
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cached_property
from multiprocessing.shared_memory import SharedMemory
from types import MappingProxyType
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.testing.networks import add, endless
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from tests.integration.harness import infer_request
from tests.support.stateful import number

CHANNELS: Final = 40
LOOK_SECONDS: Final = 2.0
QUIET_LOOKS: Final = 5
"""When so many looks have found no further answer, what was got is given back."""
CALL_SECONDS: Final = 60.0
DESERVED: Final = {"OK", "held", "RESOURCE_EXHAUSTED", "closed", "UNAVAILABLE"}
"""What may come of a thing. An overloaded server closes connections."""


class Taker:
    """Who asks for many of a thing, over many connections.

    Args:
        many: how many.
    """

    def __init__(self, address: str, http: str, token: str, many: int) -> None:
        self.address = address
        self.http = http
        self.many = many
        self.metadata = (("authorization", f"Bearer {token}"),)
        self.token = token
        self._open: list[asyncio.StreamWriter] = []

    @cached_property
    def channels(self) -> list[Any]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        return [grpc.aio.insecure_channel(self.address, options) for _ in range(CHANNELS)]

    @cached_property
    def _stubs(self) -> list[Any]:
        return [rpc.InferenceEngineStub(each) for each in self.channels]  # type: ignore[no-untyped-call]

    def stub(self, at: int) -> Any:
        """That of one of the connections."""
        return self._stubs[at % CHANNELS]

    async def each(self, ask: Callable[[int], Awaitable[Any]]) -> Counter[str]:
        """Asks for all, and says what came of it. What has no answer is held for a while."""
        tasks = [asyncio.ensure_future(_code(ask(at))) for at in range(self.many)]
        quiet, answered = 0, 0
        while quiet < QUIET_LOOKS and answered < self.many:
            await asyncio.sleep(LOOK_SECONDS)
            now = sum(each.done() for each in tasks)
            quiet, answered = quiet + 1 if now == answered else 0, now
        return Counter(each.result() if each.done() else "held" for each in tasks)

    async def sockets(self, address: str, first: bytes) -> Counter[str]:
        """Opens connections, and holds them."""
        host, _, port = address.rpartition(":")

        async def one(_: int) -> None:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                raise _Closed from None
            self._open.append(writer)
            writer.write(first)
            while True:
                try:
                    data = await reader.read(2**16)
                except OSError:
                    data = b""
                if not data:
                    raise _Closed

        return await self.each(one)


class _Closed(Exception):
    """The server has closed a connection."""


async def _code(asked: Awaitable[Any]) -> str:
    try:
        await asked
    except _Closed:
        return "closed"
    except grpc.aio.AioRpcError as error:
        name: str = error.code().name
        return name if name in DESERVED else f"{name} ({error.details()})"
    return "OK"


async def loads(taker: Taker) -> Counter[str]:
    model = add().model.SerializeToString()

    async def load(at: int) -> None:
        source = pb.ModelSource(data=model)
        request = pb.LoadNetworkRequest(name=f"n{at}", model=source, device="CPU")
        await taker.stub(at).LoadNetwork(request, metadata=taker.metadata, timeout=CALL_SECONDS)

    found = await taker.each(load)
    listed = await taker.stub(0).ListNetworks(pb.ListNetworksRequest(), metadata=taker.metadata)
    for each in listed.networks:
        if each.name.startswith("n"):
            request = pb.UnloadNetworkRequest(name=each.name)
            with suppress(grpc.aio.AioRpcError):  # its load has ended only now
                await taker.stub(0).UnloadNetwork(request, metadata=taker.metadata)
    return found


async def streams(taker: Taker) -> Counter[str]:

    async def stream(at: int) -> None:
        await taker.stub(at).InferStream(metadata=taker.metadata).read()

    return await taker.each(stream)


async def uploads(taker: Taker) -> Counter[str]:

    async def upload(at: int) -> None:
        call = taker.stub(at).UploadModel(metadata=taker.metadata)
        with suppress(grpc.aio.AioRpcError):  # it is refused; the call itself says why
            await call.write(pb.UploadModelRequest(chunk=b"x" * 1000))
        await call

    return await taker.each(upload)


async def sequences(taker: Taker) -> Counter[str]:

    async def begin(at: int) -> None:
        request = infer_request("sum", number(1))
        request.session.id, request.session.start = f"s{at}", True
        await taker.stub(at).Infer(request, metadata=taker.metadata, timeout=CALL_SECONDS)

    return await taker.each(begin)


async def requests(taker: Taker) -> Counter[str]:
    request = infer_request("endless", endless().inputs)

    async def infer(at: int) -> None:
        await taker.stub(at).Infer(request, metadata=taker.metadata)

    return await taker.each(infer)


async def queries(taker: Taker) -> Counter[str]:
    model = add().model.SerializeToString()

    async def query(at: int) -> None:
        request = pb.QueryNetworkRequest(model=pb.ModelSource(data=model), device="CPU")
        await taker.stub(at).QueryNetwork(request, metadata=taker.metadata, timeout=CALL_SECONDS)

    return await taker.each(query)


async def cancels(taker: Taker) -> Counter[str]:
    """Streams that cancel what they never asked for."""
    request = pb.InferStreamRequest(cancel=[f"r{at}" for at in range(1000)])

    async def cancel(at: int) -> None:
        call = taker.stub(at).InferStream(metadata=taker.metadata)
        with suppress(grpc.aio.AioRpcError):  # as above
            for _ in range(100):
                await call.write(request)
            await call.done_writing()
        await call.read()

    few, taker.many = taker.many, min(taker.many, 100)
    try:
        return await taker.each(cancel)
    finally:
        taker.many = few


async def regions(taker: Taker) -> Counter[str]:
    memory = SharedMemory(create=True, size=4096)

    async def register(at: int) -> None:
        request = pb.RegisterSharedMemoryRequest(name=f"r{at}", key=f"/{memory.name}", bytes=4096)
        await taker.stub(at).RegisterSharedMemory(
            request, metadata=taker.metadata, timeout=CALL_SECONDS
        )

    try:
        found = await taker.each(register)
        request = pb.UnregisterSharedMemoryRequest()
        await taker.stub(0).UnregisterSharedMemory(request, metadata=taker.metadata)
        return found
    finally:
        memory.close()
        memory.unlink()


async def watches(taker: Taker) -> Counter[str]:
    stubs = [health_pb2_grpc.HealthStub(each) for each in taker.channels]

    async def watch(at: int) -> None:
        request = health_pb2.HealthCheckRequest(service=f"w{at}")
        async for _ in stubs[at % CHANNELS].Watch(request, metadata=taker.metadata):
            pass

    return await taker.each(watch)


async def connections(taker: Taker) -> Counter[str]:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    return await taker.sockets(taker.address, preface)


async def http(taker: Taker) -> Counter[str]:
    head = f"Host: x\r\nAuthorization: Bearer {taker.token}\r\n"
    first = f"GET /v2/models/add HTTP/1.1\r\n{head}\r\n"
    return await taker.sockets(taker.http, first.encode())


async def posts(taker: Taker) -> Counter[str]:
    """Requests over HTTP that never end."""
    given = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}
    body = json.dumps({"inputs": [given]})
    head = f"Host: x\r\nAuthorization: Bearer {taker.token}\r\nContent-Length: {len(body)}\r\n"
    first = f"POST /v2/models/endless/infer HTTP/1.1\r\n{head}\r\n{body}"
    return await taker.sockets(taker.http, first.encode())


THINGS: Final[Mapping[str, Callable[[Taker], Awaitable[Counter[str]]]]] = MappingProxyType(
    {
        each.__name__: each
        for each in (
            loads,
            queries,
            uploads,
            streams,
            cancels,
            sequences,
            requests,
            regions,
            watches,
            connections,
            http,
            posts,
        )
    }
)


def main() -> None:
    address, http_address, token, thing, many = sys.argv[1:]
    taker = Taker(address, http_address, token, int(many))

    async def take() -> None:
        print(json.dumps(await THINGS[thing](taker)), flush=True)
        os._exit(0)  # with all that it holds

    asyncio.run(take())


if __name__ == "__main__":
    main()
