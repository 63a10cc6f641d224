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
from headrace.runtime.execution.cancel import CancelToken, current_token
from headrace.runtime.isolation.server.blame import Blame, Work
from headrace.runtime.isolation.server.process import WorkerLost, WorkerProcess
from headrace.runtime.isolation.server.worker_network import ask_about, ask_to_load
from headrace.runtime.isolation.server.workers import Workers
from headrace.runtime.network.network import Network
from headrace.runtime.system.memory_limit import memory_limit
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult

T = TypeVar("T")

_GRACE_SECONDS: Final = 2.0
"""How long work may go on that nobody waits for. Most of it ends by itself at its next layer."""
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

    def run(
        self, work: Work, attempt: Callable[[WorkerProcess], T], token: CancelToken | None = None
    ) -> T:
        """Has a worker that serves nobody do the work.

        Args:
            token: ends the work; if it is None, the token of the thread's work does. A worker that
                goes on nevertheless is killed.

        Raises:
            EndedWorker: the model has ended a worker, now or before.
            ResourceExhausted: models of whoever asks have ended too many workers lately.
            Unavailable: no worker starts, or somebody has killed it.
            Any error that `attempt` raises, and the token's.
        """
        token = token or current_token()
        self._blame.check(work)
        with (
            self._blame.told(work),
            self._worker(work) as worker,
            self._ended_by(token, work),
            worker.doing(work, self._seconds),
        ):
            try:
                return attempt(worker)
            except WorkerLost:
                if worker.end.risks:  # nobody else's, because the worker serves nobody
                    self._blame.offended(work.asker)
                raise

    def renew(self) -> None:
        """Uses no worker again that has been started before now, because the device's configuration
        or operators have changed."""
        with self._lock:
            self._stale |= self._busy.keys()
            self._drop_idle()

    @contextmanager
    def _worker(self, work: Work) -> Iterator[WorkerProcess]:
        with self._lock:
            worker, self._idle = self._idle, None
            if worker is not None and not worker.ended.is_set():
                self._busy[worker] = work
        if worker is None or worker.ended.is_set():
            worker = self._workers.start()
            _bound_memory(worker.pid)
            with self._lock:
                self._busy[worker] = work
        try:
            yield worker
        finally:
            self._give_back(worker)

    def _give_back(self, worker: WorkerProcess) -> None:
        with self._lock:
            del self._busy[worker]
            if worker in self._stale or worker.ended.is_set():
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

    @contextmanager
    def _ended_by(self, token: CancelToken | None, work: Work) -> Iterator[None]:
        if token is None:
            yield
            return

        def end() -> None:
            self._timer.schedule(time.monotonic() + _GRACE_SECONDS, partial(self._end, work))

        token.attach(end)
        try:
            if token.error is not None:
                raise token.error
            yield
        except WorkerLost:
            if token.error is not None:
                raise token.error from None
            raise
        finally:
            token.detach(end)

    def _end(self, work: Work) -> None:
        """Ends a worker that is still at work for nobody."""
        with self._lock:
            for worker, each in self._busy.items():
                if each is work:
                    self._blame.offended(work.asker)
                    worker.discard()


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
            services.folder,
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

        def attempt(worker: WorkerProcess) -> None:
            facts = ask_to_load(worker, load, load.config, load.token)
            worker.call("unload", {"number": facts["number"]})

        self._trials.run(Work(load.network, "", "loaded"), attempt, load.token)

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
