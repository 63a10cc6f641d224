"""A conversation on a stream that may move to another server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.client import errors
from headrace.client.balancing.verdict import Mark, Verdict, judge
from headrace.client.conversation import Conversation, Result
from headrace.wire import errors as wire_errors
from headrace.wire.message import Attachments
from headrace.wire.stream import StreamResult


class MovingConversation(Conversation):
    """Keeps each request until it has its result, so that it can be sent again elsewhere.

    A request that a server refuses, though another may take it, waits until the server has answered
    all others. Then the stream moves, and what is unanswered is sent again.

    Attributes:
        attempts: how often a request is sent at most.
        may_repeat: asked with what a refusal means; whether the request is sent again.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.attempts = 1
        self.may_repeat: Callable[[Verdict], bool] = lambda verdict: verdict.elsewhere
        self._kept: dict[int, tuple[Any, Attachments]] = {}
        self._tries: dict[int, int] = {}
        self._refused: set[int] = set()
        self._unwanted: set[int] = set()

    @property
    def has_room(self) -> bool:
        return not self._refused and super().has_room

    @property
    def must_move(self) -> bool:
        """Whether nothing but refused requests is left on this stream."""
        return bool(self._refused) and len(self._refused) == self.unanswered

    def submit(self, inputs: Mapping[str, Any]) -> Result | None:
        result = super().submit(inputs)
        if result is not None:
            self._kept.pop(result[0], None)
        return result

    def cancel(self, index: int | None = None) -> None:
        self._unwanted |= self._unanswered.keys() if index is None else {index}
        super().cancel(index)

    def move(self) -> list[Result]:
        """Has everything that is unanswered sent again, on another stream.

        Returns:
            The results of requests that were cancelled meanwhile, which are not sent again.
        """
        self._waiting, self._waiting_bytes = [], 0
        self._messages.clear()
        self._refused.clear()
        ended: list[Result] = []
        for index in list(self._unanswered):
            if index in self._unwanted:
                self._forget(index)
                del self._unanswered[index]
                ended.append((index, errors.cancelled()))
            else:
                self._add(*self._kept[index])
        return ended

    def close(self) -> None:
        super().close()
        self._kept.clear()

    def _add(self, message: Any, attachments: Attachments) -> None:
        index = int(message.id)
        if index not in self._kept:  # the caller's arrays may change, so they are copied
            self._kept[index] = message, [bytes(part) for part in attachments]
        super()._add(message, attachments)

    def _received(self, result: StreamResult) -> Result | None:
        if result.error is not None:
            index = self._index(result.id)
            verdict = judge(errors.from_details(wire_errors.from_status(result.error)))
            if self._repeats(index, verdict):
                self._refused.add(index)
                return None
        found = super()._received(result)
        if found is not None:
            self._forget(found[0])
        return found

    def _repeats(self, index: int, verdict: Verdict) -> bool:
        # A full queue has room again before a stream has moved.
        if index in self._unwanted or verdict.mark is Mark.FULL:
            return False
        self._tries[index] = tries = self._tries.get(index, 1) + 1
        return self.may_repeat(verdict) and tries <= self.attempts

    def _forget(self, index: int) -> None:
        self._kept.pop(index, None)
        self._tries.pop(index, None)
        self._unwanted.discard(index)
