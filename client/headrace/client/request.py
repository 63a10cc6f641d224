"""A request in flight, of the synchronous client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from headrace.client import errors
from headrace.client.errors import Target
from headrace.client.outputs import Outputs, decode_reply


class InferRequest:
    """A started request. Thread-safe.

    Args:
        future: gRPC's call, or a `LentCall`.
    """

    def __init__(self, future: Any, target: Target) -> None:
        self._future = future
        self._target = target
        self._outputs: Outputs | None = None

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the request has finished, in whatever way.

        Args:
            timeout: in seconds; None waits for ever, 0 looks without waiting.

        Returns:
            False when time was up first.
        """
        try:
            self._future.exception(timeout)
        except (grpc.FutureTimeoutError, TimeoutError):
            return False
        except grpc.FutureCancelledError:
            return True
        return True

    def result(self) -> Outputs:
        """The outputs; waits for them.

        Raises:
            Cancelled: it was cancelled.
            Error: what the request raised.
        """
        if self._outputs is None:
            try:
                data = self._future.result()
            except grpc.FutureCancelledError:
                raise errors.cancelled() from None
            except grpc.RpcError as error:
                raise errors.from_call(error, self._target) from None
            self._outputs = data if isinstance(data, Outputs) else decode_reply(data)
        return self._outputs

    def cancel(self) -> bool:
        """Cancels the request, also on the server; False if it had finished."""
        return bool(self._future.cancel())

    def done(self) -> bool:
        """Whether it has finished, in whatever way."""
        return bool(self._future.done())

    def add_done_callback(self, callback: Callable[[InferRequest], object]) -> None:
        """Calls `callback` with this request when it has finished, at once if it has.

        It runs on the thread that reads results, and should return soon.
        """
        self._future.add_done_callback(lambda _: callback(self))
