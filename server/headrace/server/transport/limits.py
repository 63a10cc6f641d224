"""The limits of gRPC's core for connections and their streams."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Any

from headrace.server.settings.settings import Settings
from headrace.server.transport.strangers import STRANGER_SECONDS, Strangers

_LEAST_STREAMS = 128
_MORE_STREAMS = 64
_CONNECTIONS_OF_CALLERS = 64
_NO_LIMIT = 2**31 - 1
_HANDSHAKE_MILLISECONDS = 10_000
_PING_MILLISECONDS = 60_000
_METADATA_BYTES = 16 << 10
_AHEAD_BYTES = 1 << 20
_OPEN_FILES = 1 << 16


def max_connections(settings: Settings) -> int:
    """The most gRPC connections, with those whose handshake is in progress. Each front end takes
    its part of them."""
    return 2 * max(_LEAST_STREAMS, settings.max_concurrent_rpcs // settings.processes)


def max_connections_of_an_address(settings: Settings) -> int:
    """The most gRPC connections of one address, so that an eighth is left for others."""
    return max_connections(settings) * 7 // 8


def strangers(settings: Settings, *, checks: bool) -> Strangers:
    """What ends unwanted connections.

    Args:
        checks: whether callers need credentials.
    """
    return Strangers(max_connections_of_an_address(settings), STRANGER_SECONDS if checks else None)


def allow_open_files() -> None:
    """Lets the process open 65,536 files if the system allows that, because a connection is one.

    Most systems allow 1,024 until a program asks for more, for the sake of programs that use
    `select`.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def channel_options(settings: Settings) -> list[tuple[str, Any]]:
    """Returns the channel options for gRPC's core.

    New calls wait in the core until Python takes them, one at a time. When too many calls wait,
    the core ends random calls of any client as CANCELLED. It also ends calls that have waited for
    30 seconds. So the core's bound is set very high, and each connection has a lower bound of its
    own. Calls beyond the connection's bound are refused as UNAVAILABLE or RESOURCE_EXHAUSTED. The
    connection's bound also counts resets and calls that the client has given up. A call that waits
    takes about 16 KB.

    All clients wait behind the calls that wait, so the connection's bound is not much higher than
    the calls that it may have open, which is half of all. The rest lets Python answer the others
    that they are too many.
    """
    streams = max(_LEAST_STREAMS, settings.max_concurrent_rpcs // 2 + _MORE_STREAMS)
    waiting = _CONNECTIONS_OF_CALLERS * max(_LEAST_STREAMS, settings.max_concurrent_rpcs)
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.so_reuseport", int(settings.processes > 1)),
        ("grpc.max_concurrent_streams", streams),
        ("grpc.server.max_pending_requests", waiting),
        ("grpc.server.max_pending_requests_hard_limit", waiting),
        ("grpc.server_max_unrequested_time_in_server", _NO_LIMIT),
        # The core may not widen the windows of connections whose messages nobody reads. With its
        # own fixed window of 64 KiB, every larger message would wait once for a wider one.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _AHEAD_BYTES),
        ("grpc.http2.max_frame_size", _AHEAD_BYTES),
        # What a client may do before anybody knows who it is.
        ("grpc.max_allowed_incoming_connections", max_connections(settings)),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MILLISECONDS),
        ("grpc.http2.settings_timeout", _HANDSHAKE_MILLISECONDS),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        # A client that has vanished gives its connection back within a minute and a half. gRPC
        # waits for the longer of the two timeouts, and the second is a minute unless it is set.
        ("grpc.keepalive_time_ms", _PING_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", _PING_MILLISECONDS // 3),
        ("grpc.http2.ping_timeout_ms", _PING_MILLISECONDS // 3),
        ("grpc.keepalive_permit_without_calls", 1),
        # Pings are welcome. The core would take three within five minutes for an attack, and end
        # the connection with all its calls; proxies and clients ping each ten seconds. Answers that
        # a client does not take are bounded by the core: it then reads no more of the connection.
        ("grpc.http2.max_ping_strikes", 0),
    ]
