"""A client of the side socket that does what it likes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from headrace.server.shared_memory.handover import SUFFIX

SECONDS = 60.0


class SideClient:
    """A connection to the side socket beside a server's Unix socket."""

    def __init__(self, path: str | Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(SECONDS)
        self.socket.connect(f"{path}{SUFFIX}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, packet: bytes | dict[str, Any], *descriptors: int) -> None:
        data = packet if isinstance(packet, bytes) else json.dumps(packet).encode()
        socket.send_fds(self.socket, [data], descriptors)

    def receive(self) -> dict[str, Any] | None:
        """The next answer. None if the server has ended the connection."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            return None
        found: dict[str, Any] | None = json.loads(data) if data else None
        return found

    def ask(self, packet: bytes | dict[str, Any], *descriptors: int) -> dict[str, Any] | None:
        self.send(packet, *descriptors)
        return self.receive()

    def hello(self, token: str = "") -> dict[str, Any] | None:
        return self.ask({"authorization": f"Bearer {token}"} if token else {})

    def hand_over(self, descriptor: int) -> str:
        """The secret name of memory, whose descriptor is closed."""
        try:
            answer = self.ask({"id": 1}, descriptor)
        finally:
            os.close(descriptor)
        assert answer is not None
        assert "region" in answer, answer
        return str(answer["region"])


def closed(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)
