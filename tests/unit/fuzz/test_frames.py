"""What the fuzzer of frames expects of a server."""

from __future__ import annotations

from headrace.http2 import frames
from tools.fuzz.frames import TAIL, owed

CALL = frames.PREFACE + frames.frame(frames.HEADERS, frames.LAST_HEADERS, 1, b"")
UNKNOWN = 77
BEFORE_PING = len(TAIL) - len(frames.frame(frames.PING, 0, 0, bytes(8)))


def test_a_call_that_has_ended_is_owed_its_end() -> None:
    assert owed(CALL + TAIL) == ({1}, True)


def test_a_reply_that_may_get_no_room_is_not_owed() -> None:
    swallows = frames.frame(UNKNOWN, 0, 0, bytes(BEFORE_PING))[: frames.HEAD_BYTES]
    assert owed(CALL + swallows + TAIL) == (set(), True)
