"""Many requests over one stream, of the synchronous client."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import grpc

from headrace.client import errors
from headrace.client.conversation import Conversation, Result
from headrace.client.errors import Target
from headrace.client.forks import tell_of_forks
from headrace.client.multiplex.threads.exits import close_at_exit
from headrace.client.outputs import Outputs


class InferMany(Iterator[Result]):
    """Iterates over (index, outputs or error) in the order in which requests finish.

    The iterating thread draws the inputs. Before each wait for results it draws as many as may be
    in flight. Requests that are drawn together travel together. Only one thread may iterate; any
    thread may cancel and close. `_lock` guards the conversation and the order of its messages. It
    is not held while an input is drawn, nor during a wait.
    """

    def __init__(
        self,
        conversation: Conversation,
        inputs: Iterable[Mapping[str, Any]],
        start: Callable[[Iterator[bytes]], Any],
        target: Target,
    ) -> None:
        self._lock = threading.Lock()
        self._conversation = conversation
        self._inputs = iter(inputs)
        self._exhausted = False
        self._target = target
        self._results: deque[Result] = deque()
        # gRPC takes the messages from this queue on a thread of its own; None ends them.
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = start(iter(self._outgoing.get, None))
        self._closed = self._inherited = False
        close_at_exit(self)
        tell_of_forks(self)

    def inherit(self) -> None:
        self._closed = self._inherited = True
        self._results = deque()

    def __next__(self) -> tuple[int, Outputs | errors.Error]:
        while not self._results:
            if self._inherited:
                raise errors.forked()
            if self._closed:
                raise StopIteration
            self._fill()
            if not self._results:
                self._receive()
        return self._results.popleft()

    def cancel(self, index: int | None = None) -> None:
        """Cancels one request, or all in flight: their results are `Cancelled`.

        Inputs that are not drawn yet are still sent; `close` stops that.
        """
        if self._inherited:
            raise errors.forked()
        with self._lock:
            self._conversation.cancel(index)
            self._send(self._conversation.all_messages())

    def close(self) -> None:
        """Cancels the requests in flight and ends the iteration. Idempotent."""
        if not self._closed:
            self._closed = True
            self._results.clear()
            self._outgoing.put(None)
            self._call.cancel()
            self._conversation.close()

    def __enter__(self) -> InferMany:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()

    def _fill(self) -> None:
        """Draws and sends inputs while there is room for them."""
        try:
            while not self._exhausted and self._conversation.has_room:
                inputs = next(self._inputs, None)
                if inputs is None:
                    self._exhausted = True
                    break
                with self._lock:
                    failed = self._conversation.submit(inputs)
                    self._send(self._conversation.full_messages())
                if failed is not None:
                    self._results.append(failed)
        except BaseException:  # an error of the user's iterable: nobody will read the results
            self.close()
            raise
        with self._lock:
            self._send(self._conversation.all_messages())

    def _receive(self) -> None:
        """Waits for a message of results, or for the stream's end when all have come."""
        finished = self._exhausted and not self._conversation.unanswered
        if finished:
            self._outgoing.put(None)
        try:
            data = next(self._call, None)
            if data is not None:
                with self._lock:
                    results = self._conversation.receive(data)
                    self._send(self._conversation.all_messages())
                self._results.extend(results)
                self._received()
                return
        except grpc.RpcError as error:
            if not finished:  # otherwise every request has its result, and there is nothing to end
                self._broke(errors.from_call(error, self._target))
                return
        except errors.Error:
            self.close()
            raise
        failed = self._conversation.ended()
        self.close()
        if failed is not None:
            raise failed

    def _received(self) -> None:
        """Called after each message of results."""

    def _broke(self, error: errors.Error) -> None:
        """Called if the stream breaks before all requests have their results.

        Raises:
            Error: the stream cannot go on.
        """
        self.close()
        raise error from None

    def _send(self, messages: list[bytes]) -> None:
        for message in messages:
            self._outgoing.put(message)
