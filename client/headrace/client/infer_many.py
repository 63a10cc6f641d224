"""Many requests over one stream, of the synchronous client."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.client import errors
from headrace.client.channel.channel import CallFailed, MessageStream
from headrace.client.conversation import SLACK_SECONDS, Conversation, Result
from headrace.client.forks import tell_of_forks
from headrace.client.outputs import Outputs


class InferMany(Iterator[Result]):
    """Iterates over (index, outputs or error) in the order in which requests finish.

    The iterating thread draws the inputs. Before each wait for results it draws as many as may be
    in flight. Requests that are drawn together travel together. Only one thread may iterate; any
    thread may cancel and close. `_lock` guards the conversation and the order of its messages. It
    is not held while an input is drawn, nor during a wait. The iterating thread also moves the
    stream to another server if it must.
    """

    def __init__(self, conversation: Conversation, inputs: Iterable[Mapping[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._conversation = conversation
        self._place = conversation.place
        self._inputs = iter(inputs)
        self._exhausted = False
        self._results: deque[Result] = deque()
        self._server: Any = None  # the client of the stream's server
        self._call: MessageStream | None = None  # begins with the first input
        self._closed = self._inherited = False
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
            if self._call is None:
                self._begin()
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
            if self._call is not None:
                self._call.cancel()
            self._conversation.close()
            self._place.end()

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

    def _begin(self) -> None:
        """Begins a stream at the first server that takes one.

        Raises:
            Error: none does.
        """
        try:
            while True:
                self._server = self._place.take()
                try:
                    self._call = self._server.calls.stream()
                    return
                except CallFailed as failure:
                    broke: errors.Error = errors.from_call(failure, self._server.endpoint)
                except errors.FailedPrecondition as error:  # the server's client is closed
                    broke = error
                time.sleep(self._place.pause_after(broke, closed=self._closed))
        except BaseException:
            self.close()
            raise

    def _move(self, pause: float) -> None:
        """Begins a stream elsewhere, and sends there what is unanswered."""
        if self._call is not None:
            self._call.cancel()
        time.sleep(pause)
        self._begin()
        with self._lock:
            self._results.extend(self._conversation.move())
            self._send(self._conversation.all_messages())
        if self._closed and self._call is not None:  # meanwhile, by another thread
            self._call.cancel()
            self._place.end()

    def _receive(self) -> None:
        """Waits for a message of results, or for the stream's end when all have come."""
        assert self._call is not None
        finished = self._exhausted and not self._conversation.unanswered
        if finished:
            self._call.end()
        try:
            limit = SLACK_SECONDS if finished else self._conversation.seconds_left
            data = self._call.read(limit)
            if data is not None:
                with self._lock:
                    results = self._conversation.receive(data)
                    self._send(self._conversation.all_messages())
                self._results.extend(results)
                self._place.heard()
                if self._conversation.must_move:
                    self._move(self._place.leave())
                return
        except CallFailed as failure:
            if not finished:  # otherwise every request has its result, and there is nothing to end
                self._broke(errors.from_call(failure, self._server.endpoint))
                return
        except errors.Error:
            self.close()
            raise
        failed = self._conversation.ended()
        self.close()
        if failed is not None:
            raise failed

    def _broke(self, error: errors.Error) -> None:
        try:
            pause = self._place.pause_after(error, closed=self._closed)
        except errors.Error:
            self.close()
            raise
        self._move(pause)

    def _send(self, messages: list[bytes]) -> None:
        if self._call is not None:
            for message in messages:
                self._call.write(message)
