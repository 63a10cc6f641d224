"""TLS over memory, so that whoever owns the socket decides when to wait for it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import Final

from headrace.client.channel.channel import Buffer
from headrace.client.channel.connecting import Tls
from headrace.client.channel.connecting.waits import Ready, Steps

_RAW_BYTES: Final = 64 << 10


class Cipher:
    """One end of TLS. Not thread-safe: OpenSSL may not read and write at once, so the connection's
    lock guards it.

    Attributes:
        end: what it has agreed on with the server.
    """

    def __init__(self, tls: Tls) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.end = tls.wrap(self._incoming, self._outgoing)

    def shake_hands(self, connected: socket.socket, until: float) -> Steps[None]:
        """Does the handshake over a socket that nobody else uses meanwhile.

        Args:
            connected: does not block.
            until: on the monotonic clock.

        Raises:
            OSError: it fails, or time is up.
        """
        while True:
            try:
                self.end.do_handshake()
                more = False
            except ssl.SSLWantReadError:
                more = True
            finally:
                if self._outgoing.pending:
                    yield from _sent(connected, self._outgoing.read(), until)
            if not more:
                return
            try:
                data = connected.recv(_RAW_BYTES)
            except BlockingIOError:
                if not (yield Ready(until, reading=(connected,))):
                    raise TimeoutError from None
                continue
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    def encrypt(self, parts: Iterable[Buffer]) -> bytes:
        """What is to be sent for these bytes, and for TLS itself."""
        for part in parts:
            if len(part):
                self.end.write(part)
        return self._outgoing.read()

    def feed(self, data: memoryview) -> None:
        """Takes what was received."""
        self._incoming.write(data)

    def read_into(self, target: memoryview) -> int:
        """Reads plain bytes, as far as they have come. 0 if none have.

        Raises:
            OSError: the server broke TLS, or has ended it.
        """
        if not self._incoming.pending and not self.end.pending():
            return 0
        try:
            count = self.end.read(len(target), target)
        except ssl.SSLWantReadError:
            return 0
        if not count:
            raise ConnectionResetError("the server has ended TLS")
        return int(count)


def _sent(connected: socket.socket, data: bytes, until: float) -> Steps[None]:
    while data:
        try:
            data = data[connected.send(data) :]
        except BlockingIOError:
            if not (yield Ready(until, writing=(connected,))):
                raise TimeoutError from None
