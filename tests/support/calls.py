"""A call that no connection carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from headrace.server.transport.call import Take, deliver_one_by_one


class Aborted(Exception):
    """What `FakeCall.abort` ends the handler with."""


class FakeCall:
    """Implements `Call`: it has one empty message and no deadline, and keeps how it ends.

    Args:
        metadata: what its caller sent.

    Attributes:
        code, message, trailing: the status that the caller would get.
    """

    method = "/headrace.v1.InferenceEngine/Method"

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata
        self._callbacks: list[Callable[[], object]] = []
        self.trailing: dict[str, Any] = {}
        self.code: Any = None
        self.message = ""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def certificate(self) -> bytes | None:
        return None

    def time_remaining(self) -> float | None:
        return None

    async def user(self) -> int | None:
        return None

    def show_credential(self) -> None: ...

    async def read(self) -> bytes | None:
        return b""

    async def deliver(self, take: Take) -> None:
        await deliver_one_by_one(self, take)

    async def write(self, message: bytes) -> None: ...

    def try_write(self, message: bytes) -> bool:
        return False

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.trailing = dict(metadata)

    async def abort(self, code: Any, message: str, metadata: Any) -> NoReturn:
        self.code, self.message, self.trailing = code, message, dict(metadata)
        raise Aborted

    def cancel(self) -> None: ...

    def when_over(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        """The status has been sent."""
        callbacks, self._callbacks = self._callbacks, []
        for each in callbacks:
            each()
