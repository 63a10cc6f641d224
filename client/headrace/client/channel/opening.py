"""From a name to a connection that carries calls. Written once, for threads and for asyncio."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from headrace.client.channel import bounds
from headrace.client.channel.channel import CallFailed
from headrace.client.channel.cipher import Cipher
from headrace.client.channel.connecting import Dialler, DialResult, Unreachable
from headrace.client.channel.connecting.waits import Ready, Steps
from headrace.client.channel.connection import ChannelConnection

C = TypeVar("C", bound=ChannelConnection)


def opened(dialler: Dialler, until: float, make: Callable[[Any, Cipher | None], C]) -> Steps[C]:
    """Connects, and waits for the server's greeting.

    Args:
        until: on the monotonic clock.
        make: makes the connection of a connected socket, which does not block, and its TLS.

    Raises:
        CallFailed: no connection came about; its text says why.
    """
    try:
        link = yield from dialler.dial(max(until - time.monotonic(), 0.0))
    except Unreachable as error:
        raise _failure(error) from None
    reason: BaseException | None
    received = b""
    try:
        bounds.set_up(link.socket)
        connection = make(link.socket, (yield from _cipher(link, until)))
        while not connection.greet_now():
            if not (yield Ready(until, reading=(link.socket,))):
                raise TimeoutError
        if connection.lost is None:
            connection.first = b""
            return connection
        received, reason = connection.first, connection.broke
    except OSError as error:
        reason = error
    except BaseException:
        link.socket.close()
        raise
    link.socket.close()
    raise _failure((yield from dialler.explain(link, reason, received)))


def _cipher(link: DialResult, until: float) -> Steps[Cipher | None]:
    if link.tls is None:
        return None
    cipher = Cipher(link.tls)
    yield from cipher.shake_hands(link.socket, until)
    link.check_protocol(cipher.end)
    return cipher


def _failure(error: Unreachable) -> CallFailed:
    code = grpc.StatusCode.UNAVAILABLE
    return CallFailed(code, str(error), begun=False, unreachable=True, lasts=error.lasts)
