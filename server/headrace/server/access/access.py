"""Access control as the settings ask for it."""

from __future__ import annotations

from headrace.runtime.metrics.counters import Counters
from headrace.server.access.audit import AuditLog
from headrace.server.access.authenticator import authenticator
from headrace.server.access.entrance import Entrance
from headrace.server.access.gate import Gate
from headrace.server.access.quotas import Quotas
from headrace.server.access.watched import Watcher
from headrace.server.settings.settings import Settings


class Access:
    """Makes the entrances of one server, which share the files and the audit log.

    Args:
        watcher: looks at the files.
        counters: count refused callers.

    Raises:
        InvalidArgument: a file cannot be read, parsed or written.
    """

    def __init__(self, settings: Settings, watcher: Watcher, counters: Counters) -> None:
        self._counters = counters
        self._authenticator = authenticator(settings, watcher)
        rate, in_flight = settings.rate_limit, settings.max_in_flight_per_client
        self._quotas = Quotas(rate, in_flight) if rate or in_flight else None
        path = settings.audit_log
        self._audit = AuditLog(path) if path is not None else None

    def entrance(self) -> Entrance | None:
        """The entrance of one event loop. None if nothing has to be done there."""
        if self._authenticator is None and self._audit is None and self._quotas is None:
            return None
        gate = Gate(self._authenticator) if self._authenticator is not None else None
        return Entrance(gate, self._audit, self._counters.refused(), self._quotas)

    def close(self) -> None:
        """Writes the rest of the audit log."""
        if self._audit is not None:
            self._audit.close()
