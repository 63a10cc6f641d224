"""Messages over a lane, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.runtime.isolation.wire.channel import Buffer, packed
from headrace.runtime.isolation.wire.lane import Lane


def send(
    lane: Lane,
    header: dict[str, Any],
    body: Sequence[Buffer] = (),
    descriptors: Sequence[int] = (),
) -> None:
    """Sends what has been gathered, and this message. Raises as `Lane.flush`."""
    lane.gather(packed(header, body, len(descriptors)))
    lane.flush(descriptors)
