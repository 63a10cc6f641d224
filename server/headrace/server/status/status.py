"""The status document: what a server, its devices and its networks do now.

All counters in it are those of the metrics, counted since the start. Whoever shows rates takes the
differences between two documents.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version as version_of
from typing import Any, Final

import orjson
from prometheus_client import CollectorRegistry, ProcessCollector

from headrace.runtime.core import Core
from headrace.runtime.errors import HeadraceError
from headrace.runtime.metrics import families
from headrace.runtime.metrics.cache_counters import EVENTS
from headrace.runtime.metrics.series import SeriesSnapshot
from headrace.runtime.system.memory_limit import memory_limit
from headrace.runtime.system.processors import usable_processors
from headrace.server.access.identity import CALLER
from headrace.server.access.networks import Networks
from headrace.server.repository.repository import Repository, RepositoryVersion
from headrace.server.settings.settings import Settings
from headrace.server.status.devices import device_rows
from headrace.server.status.errors import RecentErrors
from headrace.server.status.networks import network_rows
from headrace.server.status.numbers import grouped, short, summed

MAX_VERSIONS: Final = 200
"""How many versions of the repository's networks one document has."""

READY: Final = "ready"
"""The state of a server that takes requests."""

_LOOK_SECONDS: Final = 5.0
"""The repository's folder is read no more often than this."""

_REASON: Final = 500
_COLLECTOR: Final = ProcessCollector(registry=CollectorRegistry())


class StatusReport:
    """Makes the document. Thread-safe: `_lock` guards the last look at the repository, and is held
    while the folder is read.

    Args:
        networks: says which networks the caller sees, and under which names.
        errors: the latest errors.
        state: `READY`, or a text that says why the server is not ready.
        addresses: the addresses of gRPC and HTTP, and gRPC's Unix socket or "".
        certificate: the series of TLS.
    """

    def __init__(
        self,
        core: Core,
        networks: Networks,
        repository: Repository,
        errors: RecentErrors,
        settings: Settings,
        *,
        state: Callable[[], str],
        addresses: Callable[[], tuple[str, str, str]],
        certificate: Callable[[], Iterable[SeriesSnapshot]] = tuple,
    ) -> None:
        self._core = core
        self._networks = networks
        self._repository = repository
        self._errors = errors
        self._settings = settings
        self._state = state
        self._addresses = addresses
        self._certificate = certificate
        self._started = time.time()
        self._lock = threading.Lock()
        self._look_at = 0.0
        self._versions: list[RepositoryVersion] = []
        self._fault = ""

    def text(self, match: str = "") -> bytes:
        """The document as JSON."""
        return orjson.dumps(self.document(match))

    def document(self, match: str = "") -> dict[str, Any]:
        """The document for the caller of this task. Do not call it on an event loop: it takes some
        milliseconds with hundreds of networks, and as long as the devices take to tell their
        memory.

        Args:
            match: a part of the names of the networks to list. "" lists all.
        """
        series = (
            *self._core.counters.snapshot(),
            *self._core.shadows.snapshot(),
            *self._core.device_outages(),
        )
        now = time.time()
        caller = CALLER.get()
        return {
            "time": now,
            "bounds": {"seconds": families.REQUEST_SECONDS, "rows": families.BATCH_SIZES},
            "server": self._server(now),
            "process": process_facts(),
            "caller": {"name": caller.name, "role": caller.highest.name.lower()},
            "devices": list(device_rows(self._core, series, full=self._networks.manages(""))),
            **network_rows(
                self._networks, self._core.networks, self._core.shadows.get, series, match
            ),
            "repository": self._repository_rows() if self._settings.model_repository else None,
            "errors": self._errors.rows(self._networks),
            "certificate": self._certificate_facts(),
            "calls": {
                "grpc": summed(series, families.GRPC_REQUESTS, "code"),
                "http": summed(series, families.HTTP_REQUESTS, "code"),
            },
            "refused_callers": summed(series, families.REFUSED_CALLERS, "reason"),
            "cache": _cache(series),
        }

    def _server(self, now: float) -> dict[str, Any]:
        grpc, http, unix = self._addresses()
        settings = self._settings
        return {
            "version": version_of("headrace"),
            "python": platform.python_version(),
            "state": self._state(),
            "started": self._started,
            "uptime_seconds": now - self._started,
            "grpc": grpc,
            "http": http,
            **({"unix": unix} if unix else {}),
            "tls": settings.tls_cert is not None,
            "access_control": settings.tokens is not None or settings.jwt_jwks is not None,
            "private_networks": settings.private_networks,
        }

    def _certificate_facts(self) -> dict[str, Any] | None:
        values = {sample.family: sample.value for sample in self._certificate()}
        if not values:
            return None
        return {
            "expires": values[families.TLS_EXPIRATION],
            "stale": bool(values[families.TLS_STALE]),
            "client_certificates": self._settings.tls_client_ca is not None,
        }

    def _repository_rows(self) -> dict[str, Any]:
        networks = self._networks
        versions, fault = self._look()
        seen = [version for version in versions if networks.sees(version.name)]
        return {
            "versions": [
                {
                    "name": networks.shown(each.name),
                    "version": each.version,
                    "state": each.state.value if each.state is not None else None,
                    "reason": short(each.reason, _REASON),
                    "share": each.share,
                }
                for each in seen[:MAX_VERSIONS]
            ],
            "left_out": max(0, len(seen) - MAX_VERSIONS),
            "error": fault or self._repository.files.trouble,
        }

    def _look(self) -> tuple[list[RepositoryVersion], str]:
        """What the repository holds, as seen some seconds ago at most."""
        with self._lock:
            if time.monotonic() >= self._look_at:
                try:
                    self._versions, self._fault = self._repository.index(own=True), ""
                except HeadraceError as error:
                    self._versions, self._fault = [], error.message
                self._look_at = time.monotonic() + _LOOK_SECONDS
            return self._versions, self._fault


def _cache(series: Iterable[SeriesSnapshot]) -> dict[str, Any] | None:
    counted = grouped(series)[()]
    if families.CACHE_CAPACITY_BYTES not in counted:
        return None
    return {
        **{
            family.name.removeprefix("cache_").removesuffix("_total"): counted.total(family)
            for family in (*EVENTS.values(), families.CACHE_EVICTED)
        },
        "bytes": counted.number(families.CACHE_BYTES),
        "capacity_bytes": counted.number(families.CACHE_CAPACITY_BYTES),
    }


def process_facts() -> dict[str, Any]:
    """The numbers of the process itself, without the processes of isolated devices."""
    own = {
        sample.name.removeprefix("process_"): sample.value
        for metric in _COLLECTOR.collect()
        for sample in metric.samples
    }
    numbers: dict[str, Any] = {
        name: int(own[name])
        for name in ("resident_memory_bytes", "virtual_memory_bytes", "open_fds", "max_fds")
        if name in own
    }
    memory = memory_limit()
    return {
        "pid": os.getpid(),
        "cpu_seconds_total": own.get("cpu_seconds_total"),
        "processors": usable_processors(),
        "threads": threading.active_count(),
        "memory_limit_bytes": memory.limit if memory is not None else None,
        **numbers,
    }
