"""The load, in a process of its own: closed loops of raw bytes against one method.

Usage: load.py ADDRESS MODE CALLERS SECONDS MESSAGE_FILE, where MODE is a unary method's path, or
``stream:N`` for N InferStreams with CALLERS / N requests in flight on each. As headrace's client
does, requests that may go at the same time share a message; with ``single:N`` each has a message of
its own. ``echo:N`` asks the bare echo over N streams as ``single:N`` does. Prints a line when all
connections are open, and waits for a line. Then it begins, and prints the number of replies and the
seconds that they took. With LOAD_TLS_CA, a PEM file, it speaks TLS, and with LOAD_TLS_CERT and
LOAD_TLS_KEY it has a certificate of its own. With HEADRACE_TOKEN, each call sends this token.
LOAD_CONNECTIONS is the number of connections.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import uvloop

from headrace.v1 import inference_engine_pb2 as pb

TOKEN = os.environ.get("HEADRACE_TOKEN")
METADATA = (("authorization", f"Bearer {TOKEN}"),) if TOKEN else None
CONNECTIONS = int(os.environ.get("LOAD_CONNECTIONS", "1"))
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


async def unary(channel: grpc.aio.Channel, path: str, message: bytes, end: float) -> int:
    call = channel.unary_unary(path)
    count = 0
    while time.monotonic() < end:
        await call(message, metadata=METADATA)
        count += 1
    return count


async def stream(
    channel: grpc.aio.Channel, in_flight: int, message: bytes, end: float, *, together: bool
) -> int:
    """Each reply is answered with another request."""
    call = channel.stream_stream("/headrace.v1.InferenceEngine/InferStream")(metadata=METADATA)
    request = pb.InferRequest.FromString(message)

    async def send(first: int, count: int) -> None:
        for start in range(first, first + count, count if together else 1):
            batch = pb.InferStreamRequest()
            for identifier in range(start, start + (count if together else 1)):
                request.id = str(identifier)
                batch.requests.append(request)
            await call.write(batch.SerializeToString())

    await send(0, in_flight)
    sent, received = in_flight, 0
    while received < sent:
        data = await call.read()
        if data is grpc.aio.EOF:
            raise RuntimeError(await call.details())
        results = pb.InferStreamReply.FromString(data).results
        for result in results:
            if result.HasField("error"):
                raise RuntimeError(result.error.message)
        received += len(results)
        if time.monotonic() < end:
            await send(sent, len(results))
            sent += len(results)
    await call.done_writing()
    return received


async def echo_stream(channel: grpc.aio.Channel, in_flight: int, message: bytes, end: float) -> int:
    """Each reply is answered with another message."""
    call = channel.stream_stream("/Echo/Stream")()
    for _ in range(in_flight):
        await call.write(message)
    sent, received = in_flight, 0
    while received < sent:
        if await call.read() is grpc.aio.EOF:
            raise RuntimeError(await call.details())
        received += 1
        if time.monotonic() < end:
            await call.write(message)
            sent += 1
    await call.done_writing()
    return received


def connect(address: str) -> grpc.aio.Channel:
    files = [os.environ.get(f"LOAD_TLS_{name}") for name in ("CA", "KEY", "CERT")]
    if files[0] is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    contents = [file and Path(file).read_bytes() for file in files]
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*contents), OPTIONS)


async def main(address: str, mode: str, callers: int, seconds: float, message: bytes) -> None:
    async with AsyncExitStack() as connections:
        channels = [
            await connections.enter_async_context(connect(address)) for _ in range(CONNECTIONS)
        ]
        await asyncio.gather(*(each.channel_ready() for each in channels))
        print("ready", flush=True)
        sys.stdin.readline()
        start = time.monotonic()
        end = start + seconds
        kind, _, streams = mode.partition(":")
        if kind == "echo":
            share = callers // int(streams)
            loops = [
                echo_stream(channels[each % CONNECTIONS], share, message, end)
                for each in range(int(streams))
            ]
        elif streams:
            share, together = callers // int(streams), kind == "stream"
            loops = [
                stream(channels[each % CONNECTIONS], share, message, end, together=together)
                for each in range(int(streams))
            ]
        else:
            loops = [
                unary(channels[each % CONNECTIONS], mode, message, end) for each in range(callers)
            ]
        count = sum(await asyncio.gather(*loops))
        print(count, time.monotonic() - start, flush=True)


if __name__ == "__main__":
    uvloop.run(
        main(
            sys.argv[1],
            sys.argv[2],
            int(sys.argv[3]),
            float(sys.argv[4]),
            Path(sys.argv[5]).read_bytes(),
        )
    )
