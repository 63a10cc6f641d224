"""What both clients' sessions share: the methods, and how a request is made."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from headrace.client.conversation import Conversation, ConversationPlace
from headrace.client.plans import infer_plans
from headrace.client.plans.plan import Budget
from headrace.client.sessions.progress import SessionProgress
from headrace.client.shared_memory.loan import Packed
from headrace.client.shared_memory.sharing import Sharing

Found = TypeVar("Found")
R = TypeVar("R")
M = TypeVar("M")


class AnySession(Generic[Found, R, M]):
    """The requests of one sequence: the server passes the network's states from each to the next.

    Attributes:
        id: the session's id on the server.
    """

    def __init__(
        self,
        client: Any,
        progress: SessionProgress,
        timeout_seconds: float,
        sharing: Sharing | None,
    ) -> None:
        self.id = progress.id
        self._client = client
        self._progress = progress
        self._sharing = sharing
        self._timeout_seconds = timeout_seconds

    def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        performance_counts: bool = False,
        end: bool = False,
    ) -> Found:
        """Runs the network once, after the session's earlier requests.

        Args:
            inputs, outputs, priority, timeout, performance_counts: as for `Network.infer`, but
                without the states.
            end: this is the session's last request.

        Raises:
            FailedPrecondition: the session has ended, perhaps because it was idle for too long.
            As `Network.infer`.
        """
        options = _options(outputs, priority, performance_counts)
        return self._infer(inputs, options, self._budget(timeout), end=end)

    def start_async(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        performance_counts: bool = False,
        end: bool = False,
    ) -> R:
        """Starts a request and returns at once; it is sent when the session's earlier ones have
        finished, and its timeout includes the wait. The arguments are those of `infer`. In asyncio,
        await the request's result, not this method.

        Raises:
            InvalidArgument: an input does not fit the network.
            FailedPrecondition: the session has ended. The result raises all other errors.
        """
        options = _options(outputs, priority, performance_counts)
        return self._start(inputs, options, self._budget(timeout), end=end)

    def infer_many(
        self,
        inputs: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
        *,
        in_flight: int = 32,
        outputs: Sequence[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        performance_counts: bool = False,
    ) -> M:
        """Runs the network once for each of many inputs in their order, over one stream.

        Until the iteration has ended or is closed, the session takes no other request.

        Args:
            in_flight: how many requests may be unanswered at a time. With 1, the
                synchronous client draws the next input when you have the result before it.
            inputs, outputs, priority, timeout, performance_counts: as for `Network.infer_many`, but
                without the states.

        Returns:
            An iterator over (index, outputs or error), in order. After a request that fails, the
            next ones go on with the states of the last one that completed.

        Raises:
            FailedPrecondition: the session has ended, or has requests in flight.
        """
        conversation = Conversation(
            self._progress.encode_on_stream,
            ConversationPlace(self._client),
            sharing=self._sharing,
            progress=self._progress,
            in_flight=in_flight,
            outputs=outputs,
            priority=priority,
            timeout=timeout,
            performance_counts=performance_counts,
        )
        return self._many_of(conversation, inputs)

    def _infer(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], budget: Budget, *, end: bool
    ) -> Found:
        raise NotImplementedError

    def _start(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], budget: Budget, *, end: bool
    ) -> R:
        raise NotImplementedError

    def _many_of(self, conversation: Conversation, inputs: Any) -> M:
        raise NotImplementedError

    def _budget(self, timeout: float | None) -> Budget:
        return Budget(self._timeout_seconds if timeout is None else timeout)

    def _pack(self, inputs: Mapping[str, Any], options: Mapping[str, Any], *, end: bool) -> Packed:
        """A request, ready to be sent."""
        request = self._progress.encode(inputs, end=end, options=options)
        return infer_plans.pack(self._sharing, *request)


def _options(
    outputs: Sequence[str] | None, priority: int, performance_counts: bool
) -> dict[str, Any]:
    return {"outputs": outputs, "priority": priority, "performance_counts": performance_counts}
