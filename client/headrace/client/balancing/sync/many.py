"""Many requests over one stream, which moves to another server if it must."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc

from headrace.client import errors
from headrace.client.balancing.moving import MovingConversation
from headrace.client.balancing.place import Place
from headrace.client.infer_many import InferMany


class MovingMany(InferMany):
    """Iterates as `InferMany` does. The iterating thread moves the stream."""

    _conversation: MovingConversation

    def __init__(
        self,
        conversation: MovingConversation,
        inputs: Iterable[Mapping[str, Any]],
        client: Any,
        network: Any,
    ) -> None:
        self._client = client
        self._place = Place(client, network)
        conversation.attempts = client.fleet.options.attempts
        conversation.may_repeat = self._place.may_repeat
        super().__init__(conversation, inputs, self._start, client.endpoint)

    def close(self) -> None:
        super().close()
        self._place.end()

    def _start(self, messages: Iterator[bytes]) -> Any:
        while True:
            route = self._place.take()
            try:
                return route.callable("InferStream")(messages)
            except (errors.FailedPrecondition, ValueError):  # the route is closed
                if self._client.group.closed or self._place.lost(errors.cancelled()) is None:
                    raise errors.client_closed() from None

    def _receive(self) -> None:
        finished = self._exhausted and not self._conversation.unanswered
        if finished:
            self._outgoing.put(None)
        try:
            data = next(self._call, None)
            if data is not None:
                self._place.heard()
                with self._lock:
                    results = self._conversation.receive(data)
                    self._send(self._conversation.all_messages())
                self._results.extend(results)
                if self._conversation.must_move:
                    self._move(self._place.leave())
                return
        except grpc.RpcError as error:
            if not finished:
                failure = errors.from_call(error, self._target)
                pause = None if self._closed else self._place.lost(failure)
                if pause is None:
                    self.close()
                    raise failure from None
                self._move(pause)
                return
        except errors.Error:
            self.close()
            raise
        failed = self._conversation.ended()
        self.close()
        if failed is not None:
            raise failed

    def _move(self, pause: float) -> None:
        """Begins a stream elsewhere, and sends there what is unanswered."""
        self._outgoing.put(None)
        self._call.cancel()
        time.sleep(pause)
        with self._lock:
            self._results.extend(self._conversation.move())
            self._outgoing = queue.SimpleQueue()
            self._send(self._conversation.all_messages())
        try:
            self._call = self._start(iter(self._outgoing.get, None))
        except errors.Error:
            self.close()
            raise
        if self._closed:  # meanwhile, by another thread
            self._call.cancel()
            self._place.end()
