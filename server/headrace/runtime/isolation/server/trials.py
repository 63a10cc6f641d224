"""Compiles strangers' models first in workers that serve nobody.

What a model does to such a worker harms nobody: it may end it, fill it or never end. Each worker
has one model at a time, so it is known which one ended it.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Services
from headrace.runtime.isolation.server.blame import Blame, Work
from headrace.runtime.isolation.server.process import Left, WorkerProcess
from headrace.runtime.isolation.server.worker_network import ask_about, try_load
from headrace.runtime.isolation.server.workers import Workers
from headrace.runtime.network.network import Network
from headrace.runtime.system.memory_limit import memory_limit
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult

T = TypeVar("T")

_MEMORY_PART: Final = 0.5
"""The part of the server's memory that such a worker may take."""
_FIRST: Final = "1000"  # see proc(5)
_IDLE_SECONDS: Final = 30.0
"""How long an idle worker is kept for the next model."""


class WorkerTrials:
    """Thread-safe. `_lock` guards all fields; nothing waits under it.

    Args:
        workers: starts workers of the device.
        blamed: refuses models that ended workers, and those whose models do so often.
        services: the timer, and for how long a worker may load or query a network.
    """

    def __init__(self, workers: Workers, blamed: Blame, services: Services) -> None:
        self._workers = workers
        self._blame = blamed
        self._timer = services.timer
        self._seconds = services.max_load_seconds
        self._lock = threading.Lock()
        self._busy: dict[WorkerProcess, Work] = {}
        self._idle: WorkerProcess | None = None
        self._idle_until = 0.0
        self._stale: set[WorkerProcess] = set()
        self._renewals = 0

    def run(self, work: Work, attempt: Callable[[WorkerProcess], T]) -> T:
        """Has a worker that serves nobody do the work. If whoever wants it leaves, and the worker
        goes on nevertheless, the worker is killed.

        Raises:
            EndedWorker: the model has ended a worker, now or before.
            ResourceExhausted: models of whoever asks have ended too many workers lately.
            Unavailable: no worker starts, or somebody has killed it.
            Any error that `attempt` raises.
        """
        self._blame.check(work)
        with (
            self._blame.told(work),
            self._worker(work) as worker,
            worker.doing(work, self._seconds),
        ):
            try:
                return attempt(worker)
            except Left:
                self._blame.offended(work.asker)
                raise

    def renew(self) -> None:
        """Uses no worker again that has been started before now, because the device's configuration
        or operators have changed."""
        with self._lock:
            self._renewals += 1
            self._stale |= self._busy.keys()
            self._drop_idle()

    @contextmanager
    def _worker(self, work: Work) -> Iterator[WorkerProcess]:
        with self._lock:
            worker, self._idle = self._idle, None
            if worker is not None and worker.ended.is_set():
                worker = None
            if worker is not None:
                self._busy[worker] = work
            renewals = self._renewals
        if worker is None:
            worker = self._workers.start()
            _bound_memory(worker.pid)
            with self._lock:
                self._busy[worker] = work
                if renewals != self._renewals:  # it may have started as the device was before
                    self._stale.add(worker)
        try:
            yield worker
        finally:
            self._give_back(worker)

    def _give_back(self, worker: WorkerProcess) -> None:
        with self._lock:
            del self._busy[worker]
            if worker in self._stale or worker.under_way or worker.ended.is_set():
                self._stale.discard(worker)
                worker.discard()
                return
            self._drop_idle()
            self._idle, self._idle_until = worker, time.monotonic() + _IDLE_SECONDS
        self._timer.schedule(self._idle_until, self._expire)

    def _expire(self) -> None:
        with self._lock:
            if time.monotonic() >= self._idle_until:
                self._drop_idle()

    def _drop_idle(self) -> None:
        """The caller holds the lock."""
        if self._idle is not None:
            self._idle.discard()
            self._idle = None


def _bound_memory(pid: int) -> None:
    """Bounds a worker's memory, and has the system end it first where memory runs out."""
    known = memory_limit()
    with suppress(OSError):  # it has ended, or a container hides the file
        Path(f"/proc/{pid}/oom_score_adj").write_text(_FIRST)
        if known is not None:
            most = int(known.limit * _MEMORY_PART)
            resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))


class PluginTrials:
    """The trials of a device in the server's process: only these workers are apart.

    Args:
        source: the device's plugin. It has a path.
        settings: returns the device's current configuration.
    """

    def __init__(
        self, source: PluginSource, services: Services, settings: Callable[[], Mapping[str, str]]
    ) -> None:
        blamed = Blame(source.device)
        self._workers = Workers(
            source.device,
            source.path,
            settings,
            WorkerProcess,
            services,
            blamed.judge,
            lambda *_: None,
            isolated=False,
        )
        self._trials = WorkerTrials(self._workers, blamed, services)

    def query(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions
    ) -> QueryResult:
        """Asks a worker that serves nobody. Raises as `WorkerTrials.run`."""
        return self._trials.run(
            Work(network, "", "queried"), partial(ask_about, network, config, options)
        )

    def load(self, load: Load) -> None:
        """Compiles the network, and forgets it. Raises as `WorkerTrials.run`."""

        self._trials.run(
            Work(load.network, "", "loaded"), lambda worker: try_load(worker, load, load.config)
        )

    def extend(self, functions: bytes) -> None:
        """Gives later trials the operators that the device has got."""
        self._workers.extend(functions)
        self._trials.renew()

    def renew(self) -> None:
        """Uses no worker again that was started before the device was configured anew."""
        self._trials.renew()

    def kill(self) -> None:
        """Ends all workers at once, and for good. Does not block."""
        self._workers.kill()
