"""The limits of gRPC's core for connections and their streams."""

from __future__ import annotations

from typing import Any

from headrace.server.settings.settings import Settings

_LEAST_STREAMS = 128
_FULL_CONNECTIONS = 32
_NO_LIMIT = 2**31 - 1


def channel_options(settings: Settings) -> list[tuple[str, Any]]:
    """Returns the channel options for gRPC's core.

    New calls wait in the core until Python takes them, one at a time. When too many calls wait,
    the core ends random calls of any client as CANCELLED. It also ends calls that have waited for
    30 seconds. So the core's bound is set very high, and each connection has a lower bound of its
    own. Calls beyond the connection's bound are refused as UNAVAILABLE or RESOURCE_EXHAUSTED. The
    connection's bound also counts resets and calls that the client has given up. A call that waits
    takes about 16 KB.
    """
    streams = max(_LEAST_STREAMS, 2 * settings.max_concurrent_rpcs)
    waiting = _FULL_CONNECTIONS * streams
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", streams),
        ("grpc.server.max_pending_requests", waiting),
        ("grpc.server.max_pending_requests_hard_limit", waiting),
        ("grpc.server_max_unrequested_time_in_server", _NO_LIMIT),
        ("grpc.http2.bdp_probe", 0),
    ]
