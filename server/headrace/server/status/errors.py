"""The latest errors that callers got, in memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, NamedTuple

from headrace.server.access.identity import CALLER
from headrace.server.access.networks import Networks
from headrace.server.request_log import RequestRecord
from headrace.server.status.numbers import short

MAX_ERRORS: Final = 100
"""How many errors are kept for each caller, and how many the document has."""

MAX_CALLERS: Final = 64
"""How many callers' errors are kept. Those of the caller whose last error is oldest go first."""

_MESSAGE: Final = 500
_NAME: Final = 200


class _Noted(NamedTuple):
    number: int
    network: str
    facts: dict[str, Any]


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

    def note(self, request: RequestRecord) -> None:
        """Keeps what the caller of a failed request was told. A path that does not exist is not
        worth it."""
        if not request.message:
            return
        who, job = request.caller.name, request.job
        facts = {
            "time": self._clock(),
            "request_id": request.request_id[:_NAME],
            "method": request.method.lstrip("/"),
            "code": request.code,
            "message": short(request.message, _MESSAGE),
            "seconds": request.seconds,
            "caller": who,
        }
        network = (job.network if job is not None else "") or request.network
        with self._lock:
            errors = self._by_caller.get(who)
            if errors is None:
                errors = self._by_caller[who] = deque(maxlen=MAX_ERRORS)
            errors.append(_Noted(next(self._numbers), network, facts))
            self._by_caller.move_to_end(who)
            if len(self._by_caller) > MAX_CALLERS:
                self._by_caller.popitem(last=False)

    def rows(self, networks: Networks) -> list[dict[str, Any]]:
        """The latest errors for the caller of this task, the newest first.

        With private networks, a tenant sees its own errors alone.
        """
        with self._lock:
            if networks.owner:
                seen = list(self._by_caller.get(CALLER.get().name, ()))
            else:
                seen = [error for errors in self._by_caller.values() for error in errors]
        seen.sort(reverse=True)
        return [
            {**each.facts, "network": networks.shown(each.network)} for each in seen[:MAX_ERRORS]
        ]
