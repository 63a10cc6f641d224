"""The header blocks of calls."""

from __future__ import annotations

import math
import time
from typing import Final

from headrace.client.channel.channel import Metadata
from headrace.http2.calls import request_block

_REMEMBERED: Final = 256
_DIGITS: Final = 2  # of a timeout, after the first
_LEAST_SECONDS: Final = 1e-6


class Blocks:
    """The blocks of a connection's calls. Thread-safe.

    Calls of one method with the same metadata and timeout send the same bytes, so that a block is
    made once, and the server reads it once.
    """

    def __init__(self, authority: str, scheme: str, user_agent: str) -> None:
        self._authority = authority
        self._scheme = scheme
        self._user_agent = user_agent
        self._known: dict[tuple[str, float | None, Metadata], bytes] = {}

    def block(self, method: str, deadline: float | None, metadata: Metadata) -> bytes:
        """The block of a call that begins now.

        Args:
            deadline: on the monotonic clock.

        Raises:
            ValueError: the metadata cannot be sent.
        """
        sent = None
        if deadline is not None:
            left = deadline - time.monotonic()
            if 10.0 <= left < 100.0:
                sent = math.ceil(left * 10) / 10  # most timeouts: without a logarithm
            else:
                sent = _rounded(max(left, _LEAST_SECONDS))
        key = (method, sent, metadata)
        found = self._known.get(key)
        if found is None:
            found = request_block(
                method,
                self._authority,
                scheme=self._scheme,
                timeout=sent,
                metadata=metadata,
                user_agent=self._user_agent,
            )
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = found
        return found


def _rounded(seconds: float) -> float:
    """A timeout of three digits, not shorter, as gRPC's own clients round theirs. The client's own
    clock keeps the exact one."""
    step = 10.0 ** (math.floor(math.log10(seconds)) - _DIGITS)
    return math.ceil(seconds / step) * step
