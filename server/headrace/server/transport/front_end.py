"""What carries calls between clients and the methods of the services."""

from __future__ import annotations

from typing import Protocol


class FrontEnd(Protocol):
    """Accepts connections and hands their calls to the methods.

    Belongs to the thread of the event loop on which it is made. The methods run on that loop.
    """

    @property
    def connections(self) -> int:
        """How many connections are open. Any thread may read it."""

    def bind(self) -> int:
        """Takes the port.

        Returns:
            The port. It is another than the settings' if that is 0. 0 for a Unix socket.

        Raises:
            AlreadyExists: another server uses the Unix socket.
            InvalidArgument: another program has the port, or a socket cannot be made.
        """

    async def start(self) -> None:
        """Accepts connections, after `bind`."""

    async def lost(self) -> None:
        """Waits until the port takes no more calls although nobody has stopped it."""

    async def stop(self, seconds: float) -> None:
        """Closes the port and the connections. Calls that last longer than that are cancelled.

        It may also be called without `start` or `bind`.
        """
