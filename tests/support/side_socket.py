"""A client of the side socket that does what it likes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from headrace.ipc.link import Disconnected, Link, packed
from headrace.server.shared_memory.handover import SUFFIX
from tests.support.patience import PATIENCE_SECONDS


class SideClient:
    """A connection to the side socket beside a server's Unix socket."""

    def __init__(self, path: str | Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(f"{path}{SUFFIX}")
        self._link = Link(self.socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, message: bytes | dict[str, Any], *descriptors: int) -> None:
        """Sends a message, or bytes that are none."""
        if isinstance(message, dict):
            message = packed(message, (), min(len(descriptors), 255))
        self._link.send(message, descriptors)

    def receive(self) -> dict[str, Any] | None:
        """The next answer. None if the server has ended the connection."""
        try:
            return self._link.receive().header
        except Disconnected:
            return None

    def ask(self, message: bytes | dict[str, Any], *descriptors: int) -> dict[str, Any] | None:
        self.send(message, *descriptors)
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
