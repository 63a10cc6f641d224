"""What a server takes from where it runs. A server alone has its own port and state directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace.runtime.loading.store import NetworkStore
from headrace.server.services.methods import Handlers, Method
from headrace.server.services.uploads import Uploads
from headrace.server.transport.front_end import FrontEnd
from headrace.server.transport.strangers import Strangers


class Hosting(NamedTuple):
    """The parts of a server that depend on where it runs.

    Attributes:
        front_end: makes what carries the calls, instead of the settings' front end.
        uploads: makes what keeps clients' uploads. It takes the arguments of `Uploads`.
        methods: changes the table of methods before any call.
        store: keeps networks, instead of a state directory.
        key: signs exports and cached networks, instead of a key of the server's own.
    """

    front_end: Callable[[Handlers, Strangers], FrontEnd] | None = None
    uploads: Callable[[int, int, int], Uploads] = Uploads
    methods: Callable[[list[Method]], list[Method]] = list
    store: NetworkStore | None = None
    key: bytes | None = None


ALONE = Hosting()
