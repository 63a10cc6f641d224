"""Calls of grpcio: calls.py KIND ADDRESS SMALL LARGE LARGEST, files with a message of ModelInfer
each. KIND is sync or aio."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
UPLOAD = "/headrace.v1.InferenceEngine/UploadModel"
HEALTH = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
METADATA = (("x-long", "a" * 15_000), ("x-bytes-bin", b"\0\xff\0"))
CHUNK = b"\x0a\xe8\x07" + b"a" * 1000
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
PACKED = (grpc.Compression.Gzip, grpc.Compression.Deflate)


def sync(address: str, small: bytes, large: bytes, largest: bytes) -> None:
    def watched(seconds: float, *, cancels: bool = False) -> grpc.StatusCode:
        call = channel.unary_stream(WATCH)(b"", timeout=seconds)
        try:
            for _ in call:
                if cancels:
                    call.cancel()
        except grpc.RpcError:
            pass
        return call.code()

    with grpc.insecure_channel(address, OPTIONS) as channel:
        infer = channel.unary_unary(INFER)
        with ThreadPoolExecutor(32) as threads:
            list(threads.map(infer, [small] * 32))
        channel.unary_unary(HEALTH)(b"")
        assert len(infer(large)) > 16 << 20
        assert len(infer(largest)) > 63 << 20
        for _ in range(2):
            infer(small, metadata=METADATA)
        for each in PACKED:
            infer(large, compression=each)
        assert watched(0.5) is grpc.StatusCode.DEADLINE_EXCEEDED
        for _ in range(100):
            assert watched(300, cancels=True) is grpc.StatusCode.CANCELLED
        messages = [small] * 504 + [large]
        assert sum(1 for _ in channel.stream_stream(STREAM)(iter(messages))) == 505
        assert b"sha256:" in channel.stream_unary(UPLOAD)(iter([CHUNK] * 100))
        assert watched(5) is grpc.StatusCode.DEADLINE_EXCEEDED  # four pings
        infer(small)


async def aio(address: str, small: bytes, large: bytes, largest: bytes) -> None:
    async def watched(seconds: float, *, cancels: bool = False) -> Any:
        call = channel.unary_stream(WATCH)(b"", timeout=seconds)
        try:
            async for _ in call:
                if cancels:
                    call.cancel()
        except (grpc.RpcError, asyncio.CancelledError):
            pass
        return await call.code()

    async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
        infer = channel.unary_unary(INFER)
        await asyncio.gather(*(infer(small) for _ in range(32)))
        await channel.unary_unary(HEALTH)(b"")
        assert len(await infer(large)) > 16 << 20
        assert len(await infer(largest)) > 63 << 20
        for _ in range(2):
            await infer(small, metadata=METADATA)
        for each in PACKED:
            await infer(large, compression=each)
        assert await watched(0.5) is grpc.StatusCode.DEADLINE_EXCEEDED
        for _ in range(100):
            assert await watched(300, cancels=True) is grpc.StatusCode.CANCELLED
        messages = [small] * 504 + [large]
        replies = channel.stream_stream(STREAM)(iter(messages))
        assert len([1 async for _ in replies]) == 505
        assert b"sha256:" in await channel.stream_unary(UPLOAD)(iter([CHUNK] * 100))
        assert await watched(5) is grpc.StatusCode.DEADLINE_EXCEEDED  # four pings
        await infer(small)


if __name__ == "__main__":
    kind, where, *files = sys.argv[1:]
    given = [Path(each).read_bytes()[5:] for each in files]
    if kind == "sync":
        sync(where, *given)
    else:
        asyncio.run(aio(where, *given))
    print("done")
