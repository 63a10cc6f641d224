"""Many requests over one stream, which moves to another server if it must."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.client import errors
from headrace.client.balancing.moving import MovingConversation
from headrace.client.balancing.place import Place
from headrace.client.channel.channel import CallFailed, Stream
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
        super().__init__(conversation, inputs, self._begun, client.endpoint)

    def close(self) -> None:
        super().close()
        self._place.end()

    def _begun(self) -> Stream:
        """A stream on the first server that takes one.

        Raises:
            Error: none does.
        """
        while True:
            route = self._place.take()
            try:
                stream: Stream = route.calls.stream()
                return stream
            except errors.FailedPrecondition:  # the route is closed
                if self._client.group.closed or self._place.lost(errors.cancelled()) is None:
                    raise errors.client_closed() from None
            except CallFailed as failure:
                error = errors.from_call(failure, route.endpoint)
                pause = None if self._closed else self._place.lost(error)
                if pause is None:
                    raise error from None
                time.sleep(pause)

    def _received(self) -> None:
        self._place.heard()
        if self._conversation.must_move:
            self._move(self._place.leave())

    def _broke(self, error: errors.Error) -> None:
        pause = None if self._closed else self._place.lost(error)
        if pause is None:
            super()._broke(error)
        else:
            self._move(pause)

    def _move(self, pause: float) -> None:
        """Begins a stream elsewhere, and sends there what is unanswered."""
        if self._call is not None:
            self._call.cancel()
        time.sleep(pause)
        try:
            call = self._begun()
        except errors.Error:
            self.close()
            raise
        with self._lock:
            self._call = call
            self._results.extend(self._conversation.move())
            self._send(self._conversation.all_messages())
        if self._closed:  # meanwhile, by another thread
            call.cancel()
            self._place.end()
