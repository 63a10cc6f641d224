"""The shared streams of the synchronous client."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.client.multiplex.choice import Step
from headrace.client.multiplex.gathering import MAX_REQUEST_BYTES
from headrace.client.multiplex.threads.stream import Metadata, Open, Shared, Stream


class Streams:
    """The shared streams of one client: one at a time, and those that end. Thread-safe.

    `_lock` guards the choice, the stream's requests and the table of streams. It is not held while
    gRPC is called, while a request is settled, nor during a wait.

    Args:
        open: makes gRPC's callable of InferStream.
        metadata: gives the metadata of a call. A stream is used while they stay the same.
    """

    def __init__(
        self,
        open: Open,
        metadata: Callable[[], Metadata],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_call = open
        self._metadata = metadata
        self._shared = Shared(clock)
        self.clock = clock

    def __del__(self) -> None:
        # Without the lock, because this thread may hold it.
        for stream in list(self._shared.all):
            stream.cancel()

    def submit(self, item: Any) -> Stream | None:
        """Sends a request over the stream. Returns None if it needs a call of its own."""
        timeout = item.timeout_seconds
        if len(item.data) > MAX_REQUEST_BYTES or item.trace is None or timeout == 0:
            return None
        metadata, shared = self._metadata(), self._shared
        stream: Stream | None
        with shared.lock:
            stream = shared.stream
            if stream is not None and stream.metadata != metadata:
                shared.stream, old = None, stream
                old.retire()
                shared.choice.replaced(shared.clock(), old.gathering.carried)
            step = Step.UNARY if shared.closed else shared.choice.step(shared.clock())
            stream = shared.stream
            if step is Step.STREAM and stream is not None:
                item.stream = stream
                return stream if stream.add(item) else None
            if step is Step.GIVE_UP:
                shared.stream = None
        if step is Step.GIVE_UP and stream is not None:
            stream.cancel()
        elif step is Step.OPEN:
            self._open(metadata)
        return None

    def _open(self, metadata: Metadata) -> None:
        shared = self._shared
        stream = Stream(shared, self._open_call, metadata)
        with shared.lock:
            if shared.closed:
                return
            shared.stream = stream
            shared.all.add(stream)
            stream.begin()

    def close(self) -> None:
        """Cancels the requests in flight, ends the streams, and waits for their threads.

        Idempotent. A callback may call it.
        """
        with self._shared.lock:
            self._shared.closed = True
            streams = list(self._shared.all)
        for stream in streams:
            stream.close()
