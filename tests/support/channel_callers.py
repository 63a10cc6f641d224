"""Callers of channels: threads that wait, threads that start calls, and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from headrace.client.channel.channel import CallFailed, CallOptions, Reply
from headrace.client.channel.connecting import Tls, parse
from headrace.client.channel.tasks.channel import LoopChannel
from headrace.client.channel.threads.channel import SocketChannel

KINDS: Final = ("threads", "started", "tasks")
Outcome = Reply | CallFailed


class Callers:
    """Makes calls in one of the ways that there are.

    Attributes:
        channel: the channel under test.
    """

    def __init__(self, kind: str, target: str, tls: Tls | None, max_message_bytes: int) -> None:
        self._kind = kind
        make: Any = LoopChannel if kind == "tasks" else SocketChannel
        self._runner = asyncio.Runner()
        self.channel: Any = make(parse(target), tls=tls, max_message_bytes=max_message_bytes)

    def one(self, method: str, request: Any = b"", **options: Any) -> Reply:
        """The reply of a call.

        Raises:
            CallFailed: as the channel.
        """
        (outcome,) = self.all([(method, request, options)])
        if isinstance(outcome, CallFailed):
            raise outcome
        return outcome

    def all(self, calls: Sequence[tuple[str, Any, dict[str, Any]]]) -> list[Outcome]:
        """What comes of calls that are made at the same time: method, request and options of
        each."""
        if self._kind == "tasks":
            return self._runner.run(self._gathered(calls))
        if self._kind == "started":
            started = [
                self.channel.start(name, request, CallOptions(**more))
                for name, request, more in calls
            ]
            return [_outcome(call.result) for call in started]
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(
                pool.map(
                    lambda call: _outcome(self.channel.unary, *call[:2], CallOptions(**call[2])),
                    calls,
                )
            )

    async def _gathered(self, calls: Sequence[tuple[str, Any, dict[str, Any]]]) -> list[Outcome]:
        async def made(name: str, request: Any, options: dict[str, Any]) -> Outcome:
            try:
                reply: Reply = await self.channel.unary(name, request, CallOptions(**options))
            except CallFailed as failure:
                return failure
            return reply

        return await asyncio.gather(*(made(*call) for call in calls))

    def chat(
        self, method: str, requests: Sequence[Any], **options: Any
    ) -> tuple[list[bytes], CallFailed | None]:
        """What a stream answers to messages that are all sent at once, and how it failed."""
        if self._kind == "tasks":
            return self._runner.run(self._chatted(method, requests, options))
        found: list[bytes] = []
        try:
            stream = self.channel.stream(method, CallOptions(**options))
            for request in requests:
                stream.write(request)
            stream.end()
            while (message := stream.read()) is not None:
                found.append(bytes(message))
        except CallFailed as failure:
            return found, failure
        return found, None

    async def _chatted(
        self, method: str, requests: Sequence[Any], options: dict[str, Any]
    ) -> tuple[list[bytes], CallFailed | None]:
        found: list[bytes] = []
        try:
            stream = await self.channel.stream(method, CallOptions(**options))

            async def write() -> None:
                for request in requests:
                    await stream.send(request)
                stream.end()

            writing = asyncio.ensure_future(write())
            try:
                while (message := await stream.read()) is not None:
                    found.append(bytes(message))
            finally:
                writing.cancel()
        except CallFailed as failure:
            return found, failure
        return found, None

    def begun(self, method: str) -> Any:
        """A stream that has begun, of which nobody reads."""
        if self._kind == "tasks":
            return self._runner.run(self.channel.stream(method))
        return self.channel.stream(method)

    def close(self) -> None:
        if self._kind == "tasks":
            self._runner.run(self.channel.close())
        else:
            self.channel.close()
        self._runner.close()


@contextmanager
def calling(
    kind: str, target: str, *, tls: Tls | None = None, max_message_bytes: int = 64 << 20
) -> Iterator[Callers]:
    """Callers of a channel of their own."""
    callers = Callers(kind, target, tls, max_message_bytes)
    try:
        yield callers
    finally:
        callers.close()


def _outcome(call: Any, *args: Any, **options: Any) -> Outcome:
    try:
        reply: Reply = call(*args, **options)
    except CallFailed as failure:
        return failure
    return reply
