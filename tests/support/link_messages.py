"""Messages over a link, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.ipc.link import Buffer, Link, packed


def send(
    link: Link,
    header: dict[str, Any],
    body: Sequence[Buffer] = (),
    descriptors: Sequence[int] = (),
) -> None:
    """Sends what has been gathered, and this message. Raises as `Link.send`."""
    link.send(packed(header, body, len(descriptors)), descriptors)
