"""The handlers that gRPC's server calls."""

from __future__ import annotations

import asyncio
import inspect
import sys
from types import FrameType
from typing import Any

import pytest

from headrace.server.transport.front_end import one_reply


async def _answer(messages: Any, context: Any) -> bytes:
    return f"{messages} {context}".encode()


def _asks(handler: Any) -> tuple[bool, list[str]]:
    """What gRPC asks of a handler in each call, and the functions of Python that it takes."""
    functions: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            functions.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = inspect.isawaitable(handler) or inspect.iscoroutinefunction(handler)
    finally:
        sys.setprofile(before)
    return found, functions


def test_grpc_recognises_a_handler_without_a_search() -> None:
    handler = one_reply(_answer).stream_unary
    assert inspect.isawaitable(handler)  # fills the cache of the abstract class
    found, functions = _asks(handler)
    assert found
    assert "iscoroutinefunction" not in functions
    assert "iscoroutinefunction" in _asks(_answer)[1]


def test_a_handler_answers() -> None:
    method = one_reply(_answer, bytes.upper)
    assert method.request_streaming
    assert not method.response_streaming
    assert asyncio.run(method.stream_unary("some", "call")) == b"some call"
    assert method.response_serializer(b"a") == b"A"


def test_a_handler_itself_is_not_awaited() -> None:
    with pytest.raises(TypeError, match="await what it returns"):
        one_reply(_answer).stream_unary.__await__()
