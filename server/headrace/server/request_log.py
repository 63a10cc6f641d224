"""The log's lines about requests that have ended: each failed one, and each slow one by stage."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.job import Job
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.metrics.families import LOG_LINES_LEFT_OUT, SLOW_REQUESTS
from headrace.runtime.metrics.series import SeriesSnapshot
from headrace.server.access.identity import ANONYMOUS, STRANGER, Identity
from headrace.server.access.quotas import client_name
from headrace.server.http.errors import CLIENT_LEFT
from headrace.server.logs import Ration

_log = logging.getLogger(__name__)

LINES_A_SECOND: Final = 20
"""The most lines about requests in one second, unless the log's level is debug."""

LINES_OF_A_CLIENT: Final = 5
"""The most of them about one client's requests."""

JOB: ContextVar[Job | None] = ContextVar("job", default=None)
"""The job of the request that this task handles, once it has ended."""

# The caller can mend these. All other errors are warnings to the server's operator.
_OF_THE_CALLER: Final = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "FAILED_PRECONDITION",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
    }
)
_FAILED: Final = "request failed"
_NO_FAILURES: Final = frozenset({"OK", "CANCELLED", str(CLIENT_LEFT)})


class RequestRecord(NamedTuple):
    """A request that has ended.

    Attributes:
        method: the RPC, or the HTTP method and the path with placeholders.
        code: the name of a gRPC status, or a status of HTTP.
        seconds: from its arrival to its end.
        caller, peer: the caller, and its address in gRPC's form.
        message: what the caller was told about a failure.
        job: its job, if it came as far as that.
        network: the full name of the network that refused it, if it has no job.
        answered: whether it got what it asked for, whatever the status: that something is not ready
            is the answer to a probe.
    """

    method: str
    code: str
    seconds: float
    request_id: str
    caller: Identity
    peer: str
    message: str = ""
    job: Job | None = None
    network: str = ""
    answered: bool = False


class RequestLog:
    """Logs requests. Thread-safe: gRPC and HTTP have an event loop each. `_lock` guards the ration
    and the counts.

    At level debug, every request has a line. Otherwise the lines of failed and slow requests are
    bounded. Lines beyond the bound are counted, and the next line says how many there were.

    Args:
        slow_seconds: a request that takes this long is slow. 0: none is.
        networks: know the device of a network.
        failed: called with each request that has failed, whether it gets a line or not.
        clock: a monotonic time in seconds.
    """

    def __init__(
        self,
        slow_seconds: float = 0.0,
        networks: NetworkRegistry | None = None,
        failed: Callable[[RequestRecord], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slow_seconds = slow_seconds or float("inf")
        self._networks = networks
        self._failed = failed
        self._lock = threading.Lock()
        self._ration = Ration(LINES_A_SECOND, LINES_OF_A_CLIENT, clock)
        self._left_out = 0  # since the last line
        self._all_left_out = 0
        self._slow: Counter[str] = Counter()

    def wants(self, code: str, seconds: float) -> bool:
        """Whether a request that ended so has to be passed to `ended`. This is cheap."""
        return code != "OK" or seconds >= self.slow_seconds or _log.isEnabledFor(logging.DEBUG)

    def ended(self, request: RequestRecord, *, may_be_slow: bool = True) -> None:
        """Writes the line of a request, if it gets one.

        Args:
            may_be_slow: whether its duration matters. A load or a stream may take any time.
        """
        slow = may_be_slow and request.seconds >= self.slow_seconds
        event, level = _kind("OK" if request.answered else request.code, slow=slow)
        if event == _FAILED:
            self._failed(request)
        if not (slow or _log.isEnabledFor(level)):
            return
        left_out = 0
        with self._lock:
            if slow:
                self._slow[request.method] += 1
            if not _log.isEnabledFor(logging.DEBUG):
                if not self._ration.allows(client_name(request.caller, request.peer)):
                    self._left_out += 1
                    self._all_left_out += 1
                    return
                left_out, self._left_out = self._left_out, 0
        facts = self._facts(request)
        if left_out:
            facts["left_out"] = left_out
        _log.log(level, event, extra=facts)

    def snapshot(self) -> Iterator[SeriesSnapshot]:
        with self._lock:
            slow, left_out = dict(self._slow), self._all_left_out
        for method, count in slow.items():
            yield SeriesSnapshot(SLOW_REQUESTS, (method,), float(count))
        yield SeriesSnapshot(LOG_LINES_LEFT_OUT, (), float(left_out))

    def _facts(self, request: RequestRecord) -> dict[str, Any]:
        job = request.job
        facts: dict[str, Any] = {
            "request_id": request.request_id,
            "method": request.method,
            "code": request.code,
            "peer": request.peer,
            "seconds": round(request.seconds, 6),
        }
        if request.caller is not ANONYMOUS and request.caller is not STRANGER:
            facts["who"] = request.caller.name
        if request.message:
            facts["reason"] = request.message
        if job is None or not job.network:
            return facts | ({"network": request.network} if request.network else {})
        stages = _stages(job)
        if job.trace not in ("", request.request_id):
            facts["id"] = job.trace
        rest = request.seconds - stages["queue_seconds"] - stages["execution_seconds"]
        facts |= {"network": job.network, "version": job.version}
        with suppress(HeadraceError):  # it may be gone by now
            if self._networks is not None:
                facts["device"] = self._networks.find(job.network, job.version).device
        facts |= {name: round(value, 6) for name, value in stages.items()}
        return facts | {"other_seconds": round(max(rest, 0.0), 6)}


def _stages(job: Job) -> dict[str, float]:
    """How long the stages took, or have taken until now: a call that its caller has given up, or
    whose deadline has passed, ends before its request does."""
    return {
        "queue_seconds": job.queue_seconds,
        "execution_seconds": job.execution_seconds,
        "inference_seconds": job.inference_seconds,
    }


def _kind(code: str, *, slow: bool) -> tuple[str, int]:
    """The event and its level."""
    status = int(code) if code.isdigit() else 0
    if code not in _NO_FAILURES and not 0 < status < HTTPStatus.BAD_REQUEST:
        of_caller = 0 < status < HTTPStatus.INTERNAL_SERVER_ERROR or code in _OF_THE_CALLER
        return _FAILED, logging.INFO if of_caller else logging.WARNING
    if slow:
        return "slow request", logging.WARNING
    return "request ended", logging.DEBUG


def network_of(error: BaseException) -> str:
    """The full name of the network that refused a request with this error, if one did."""
    return error.network if isinstance(error, HeadraceError) else ""
