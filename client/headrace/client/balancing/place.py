"""The server that a stream is at, and where it goes next."""

from __future__ import annotations

from typing import Any, Final

from headrace.client.balancing.attempts import Attempts
from headrace.client.balancing.server import Server
from headrace.client.balancing.verdict import Mark, Verdict
from headrace.client.errors import Error

_PAUSE_SECONDS: Final = 0.25


class Place:
    """Where one stream is. Not thread-safe.

    Args:
        client: the client for several servers.
        network: the network that the stream's requests are for.
    """

    def __init__(self, client: Any, network: Any) -> None:
        self._client = client
        self._network = network
        self._attempts: Attempts = client.attempts(network)
        self._server: Server | None = None
        self._route: Any = None
        self._progressed = False

    @property
    def server(self) -> Server | None:
        """The server; None if the stream is nowhere."""
        return self._server

    def take(self) -> Any:
        """The connection that the stream begins on.

        Raises:
            Unavailable: no server is known.
        """
        self._server = self._attempts.server()
        self._route = self._server.route
        return self._route

    def heard(self) -> None:
        """Notes a message of the server."""
        self._progressed = True
        if self._server is not None:
            self._client.fleet.heard(self._server)

    def may_repeat(self, verdict: Verdict) -> bool:
        """Whether a request that was refused is sent again elsewhere."""
        fleet = self._client.fleet
        if self._server is not None:
            fleet.marked(self._server, verdict.mark)
        if not verdict.elsewhere:
            return False
        if verdict.mark is Mark.LACKS and not fleet.has_other(self._tried):
            return False
        return verdict.free or bool(fleet.may_repeat())

    def leave(self) -> float:
        """Leaves the server because it refuses requests. Returns seconds to wait before the next
        `take`."""
        tried = self._tried
        self.end()
        self._attempts = self._client.attempts(self._network, tried)
        return 0.0 if self._client.fleet.has_other(tried) else _PAUSE_SECONDS

    def lost(self, error: Error) -> float | None:
        """Notes that the stream broke.

        Returns:
            Seconds to wait before the next `take`; None if the error is final.
        """
        server, self._server = self._server, None
        if server is None:
            return None
        if self._progressed:  # attempts count from the beginning again
            self._progressed = False
            self._attempts = self._client.attempts(self._network)
        given_up = server.gave_up(self._route) and not self._client.group.closed
        return self._attempts.failed(server, error, given_up=given_up)

    def end(self) -> None:
        """Notes that the stream has ended. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            self._client.fleet.released(server)

    @property
    def _tried(self) -> tuple[Server, ...]:
        return () if self._server is None else (self._server,)
