"""How a client knows its server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS of one client.

    Attributes:
        context: the client's authorities and its own certificate; offers ``h2`` (ALPN).
        name: what the server's certificate has to be for; also sent in the handshake (SNI).
        certified: whether the client has a certificate of its own.
    """

    context: ssl.SSLContext
    name: str
    certified: bool = False

    def wrap(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """The client's end of a connection whose bytes go through memory."""
        return self.context.wrap_bio(incoming, outgoing, server_hostname=self.name)


def greeting() -> bytes:
    """What a client of TLS says first, to any server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a server")


def is_tls(data: bytes) -> bool:
    """Whether these are the first bytes of a server of TLS: its hello, or an alert."""
    return data[:2] in (b"\x16\x03", b"\x15\x03")
