"""A request in flight, of the synchronous client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent import futures
from typing import Any

from headrace.client import errors
from headrace.client.channel.channel import CallFailed
from headrace.client.forks import process
from headrace.client.outputs import Outputs, decode_reply
from headrace.client.plans.plan import patience


class OutcomeFuture(ABC):
    """A request in flight in the form of a channel's `Call`, whose result may be the outputs.
    Thread-safe: `concurrent.futures` keeps the outcome.

    A subclass makes `_outcome`, and settles it once.
    """

    __slots__ = ()

    _outcome: futures.Future[Any]

    def result(self, timeout: float | None = None) -> Any:
        return self._outcome.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._outcome.exception(timeout)

    def done(self) -> bool:
        return self._outcome.done()

    @abstractmethod
    def cancel(self) -> bool:
        """Cancels the request; False if it has ended."""

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._outcome.add_done_callback(lambda _: callback(self))


class InferRequest:
    """A started request. Thread-safe.

    Args:
        future: a channel's `Call`, an `OutcomeFuture`, or a `concurrent.futures.Future`.
        failed: gets the error that `result` raises, if the server sent it.
    """

    def __init__(
        self,
        future: Any,
        target: object,
        failed: Callable[[errors.Error], object] = lambda _: None,
    ) -> None:
        self._future = future
        self._failed = failed
        self._target = target
        self._outputs: Outputs | None = None
        self._process = process()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the request has finished, in whatever way.

        Args:
            timeout: in seconds; None waits for ever, 0 looks without waiting.

        Returns:
            False when time was up first.
        """
        if self._process is not process():
            return True
        try:
            self._future.exception(patience(timeout))
        except TimeoutError:
            return False
        except futures.CancelledError:
            pass
        return True

    def result(self) -> Outputs:
        """The outputs; waits for them.

        Raises:
            Cancelled: it was cancelled.
            FailedPrecondition: it belongs to the process that this one was forked from.
            Error: what the request raised.
        """
        if self._outputs is None:
            if self._process is not process():
                raise errors.forked()
            try:
                found = self._future.result()
            except CallFailed as failure:
                error = errors.from_call(failure, self._target)
                self._failed(error)
                raise error from None
            except futures.CancelledError:
                raise errors.cancelled() from None
            except errors.Error as error:
                self._failed(error)
                raise
            self._outputs = found if isinstance(found, Outputs) else decode_reply(found.message)
        return self._outputs

    def cancel(self) -> bool:
        """Cancels the request, also on the server; False if it had finished."""
        return self._process is process() and bool(self._future.cancel())

    def done(self) -> bool:
        """Whether it has finished, in whatever way."""
        return self._process is not process() or bool(self._future.done())

    def add_done_callback(self, callback: Callable[[InferRequest], object]) -> None:
        """Calls `callback` with this request when it has finished, at once if it has.

        It runs on the thread that reads results, and should return soon.
        """
        self._future.add_done_callback(lambda _: callback(self))
