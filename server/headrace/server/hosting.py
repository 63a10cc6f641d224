"""What a server takes from where it runs. A server alone has its own port and state directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace.runtime.loading.store import NetworkStore
from headrace.server.elsewhere import Elsewhere
from headrace.server.services.methods import Method
from headrace.server.services.uploads import Uploads
from headrace.server.settings.settings import Settings
from headrace.server.transport.call import Methods
from headrace.server.transport.front_end import FrontEnd
from headrace.server.transport.grpcio import GrpcioFrontEnd
from headrace.server.transport.native.front_end import NativeFrontEnd
from headrace.server.transport.tls import ServerTls


def port_front_end(settings: Settings, tls: ServerTls | None, methods: Methods) -> FrontEnd | None:
    """What carries the calls of gRPC's port, as the settings say. None without a port."""
    if settings.unix_socket_only:
        return None
    return front_end_of(settings, tls, methods)


def front_end_of(
    settings: Settings, tls: ServerTls | None, methods: Methods
) -> NativeFrontEnd | GrpcioFrontEnd:
    """What carries calls, as the settings say."""
    kind = NativeFrontEnd if settings.front_end == "native" else GrpcioFrontEnd
    return kind(settings, tls, methods)


class Hosting(NamedTuple):
    """The parts of a server that depend on where it runs.

    Attributes:
        front_end: makes what carries the calls of gRPC's port.
        uploads: makes what keeps clients' uploads. It takes the arguments of `Uploads`.
        methods: changes the table of methods before any call.
        store: keeps networks, instead of a state directory.
        key: signs exports and cached networks, instead of a key of the server's own.
        elsewhere: the networks that other servers have. None if there are no others.
    """

    front_end: Callable[[Settings, ServerTls | None, Methods], FrontEnd | None] = port_front_end
    uploads: Callable[[int, int, int], Uploads] = Uploads
    methods: Callable[[list[Method]], list[Method]] = list
    store: NetworkStore | None = None
    key: bytes | None = None
    elsewhere: Elsewhere | None = None


ALONE = Hosting()
