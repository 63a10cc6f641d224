"""The latest errors that callers got, in memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from headrace.runtime.errors import HeadraceError
from headrace.server.access.audit import subject
from headrace.server.access.identity import CALLER, Identity
from headrace.server.access.networks import Networks
from headrace.server.status.numbers import short
from headrace.wire.errors import ErrorDetails

MAX_ERRORS: Final = 100
"""How many errors are kept for each caller, and how many the document has."""

MAX_CALLERS: Final = 64
"""How many callers' errors are kept. Those of the caller whose last error is oldest go first."""

_MESSAGE: Final = 500
_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class _Noted:
    number: int
    time: float
    caller: str
    network: str
    is_full_name: bool
    facts: dict[str, str]


class RecentErrors:
    """Keeps the texts that callers got, and nothing else. Thread-safe: `_lock` guards all fields,
    and no other lock is taken under it.

    Each caller has room of its own, so that no caller can push out the errors of another.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = count()
        self._by_caller: OrderedDict[str, deque[_Noted]] = OrderedDict()

    def note(
        self,
        method: str,
        error: BaseException,
        details: ErrorDetails,
        caller: Identity,
    ) -> None:
        """Keeps what a caller was told.

        Args:
            method: the RPC, or the method and the path with placeholders.
            error: the error itself, which may know its network.
            details: what the caller got.
            caller: the caller.
        """
        full = error.network if isinstance(error, HeadraceError) else ""
        noted = _Noted(
            next(self._numbers),
            self._clock(),
            caller.name,
            full or subject()[:_NAME],
            bool(full),
            {
                "request_id": details.request_id[:_NAME],
                "method": method.lstrip("/"),
                "code": details.code.name,
                "message": short(details.message, _MESSAGE),
                "field": short(details.field or "", _NAME),
                "device": details.metadata.get("device", "")[:_NAME],
            },
        )
        with self._lock:
            errors = self._by_caller.get(caller.name)
            if errors is None:
                errors = self._by_caller[caller.name] = deque(maxlen=MAX_ERRORS)
            errors.append(noted)
            self._by_caller.move_to_end(caller.name)
            if len(self._by_caller) > MAX_CALLERS:
                self._by_caller.popitem(last=False)

    def rows(self, networks: Networks) -> list[dict[str, Any]]:
        """The latest errors for the caller of this task, the newest first.

        With private networks, a tenant sees its own errors alone.
        """
        who = CALLER.get().name
        with self._lock:
            if networks.owner:
                seen = list(self._by_caller.get(who, ()))
            else:
                seen = [each for errors in self._by_caller.values() for each in errors]
        seen.sort(key=lambda each: each.number, reverse=True)
        return [_row(each, networks) for each in seen[:MAX_ERRORS]]


def _row(noted: _Noted, networks: Networks) -> dict[str, Any]:
    name = networks.shown(noted.network) if noted.is_full_name else noted.network
    return {"time": noted.time, "caller": noted.caller, "network": name, **noted.facts}
