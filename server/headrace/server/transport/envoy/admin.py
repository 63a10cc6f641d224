"""Questions to Envoy, over its socket in the server's own folder."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from headrace.server.transport.envoy.configuration import CALLS_OPEN, LISTENER

_ANSWER_BYTES = 1 << 20


class Admin:
    """Asks Envoy's main thread. Belongs to the event loop's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def port(self) -> int | None:
        """The port on which Envoy listens. None if it does not listen yet."""
        try:
            document = json.loads(await self._ask("GET", "/listeners?format=json"))
        except (OSError, ValueError):
            return None  # Envoy has not opened its socket yet
        for each in document.get("listener_statuses", ()):
            if each["name"] == LISTENER:
                port: int = each["local_address"]["socket_address"]["port_value"]
                return port or None
        return None

    async def calls_open(self) -> int:
        """How many calls have not been answered to the last byte."""
        document: Any = json.loads(
            await self._ask("GET", f"/stats?format=json&filter={CALLS_OPEN}")
        )
        return sum(int(each.get("value", 0)) for each in document["stats"])

    async def _ask(self, method: str, path: str) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=_ANSWER_BYTES)
        try:
            head = f"{method} {path} HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.read(-1)
        finally:
            writer.close()
        head_part, _, body = answer.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head_part.lower():
            body = _joined(body)
        return body


def _joined(chunks: bytes) -> bytes:
    """The content of a body in chunks."""
    found = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        length = int(size, 16)
        found += rest[:length]
        chunks = rest[length + 2 :]
    return found
