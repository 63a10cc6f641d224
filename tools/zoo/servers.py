"""The server that the networks run on: started anew whenever it has ended."""

from __future__ import annotations

import subprocess
from typing import Self

from headrace.client import Client
from tests.integration.harness import Server

_GRACE_SECONDS = 2.0


class Servers:
    """One server at a time, and a client for it."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._server: Server | None = None
        self._client: Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def client(self) -> Client:
        """A client of a server that runs."""
        if self._server is not None and self._server.process.poll() is not None:
            self.discard()
        if self._client is None:
            self._server = Server(*self._options)
            self._client = Client(self._server.address)
        return self._client

    def is_alive(self) -> bool:
        """Whether the server's process runs, after the moment that its end may take."""
        if self._server is None:
            return False
        try:
            self._server.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return True
        return False

    def discard(self) -> None:
        """Ends the server, if one runs."""
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.__exit__(None, None, None)
        self._client = self._server = None
