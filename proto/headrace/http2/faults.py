"""What ends a connection or a stream.

Fault
├── ConnectionFault   GOAWAY, and the connection closes
└── StreamFault       RST_STREAM; the other streams go on
"""

from __future__ import annotations

from headrace.http2.frames import ErrorCode


class Fault(Exception):
    """A peer has broken the protocol, or asks for too much.

    Attributes:
        code: what the peer is told.
    """

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class ConnectionFault(Fault):
    """Nothing more can be read from the connection."""


class StreamFault(Fault):
    """One stream cannot go on."""
