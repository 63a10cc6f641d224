"""Keeps a device's worker running while the device exists: restarts the worker when it dies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import HeadraceError, Internal, Unavailable, public_text
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.isolation.server.blame import Blame, End, Work
from headrace.runtime.isolation.server.process import Answer, WorkerLost, WorkerProcess
from headrace.runtime.isolation.server.trials import WorkerTrials
from headrace.runtime.isolation.server.worker_network import WorkerNetwork
from headrace.runtime.isolation.server.workers import START_SECONDS, Launch, Workers
from headrace.runtime.system.backoff import Backoff

_log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS: Final = 10.0
"""How long a thread waits for what a worker tells, which takes a healthy worker milliseconds."""
_SHORTEST_DELAY_SECONDS = 0.1


class WorkerHost:
    """Thread-safe. `_lock` guards the worker and its networks; nothing waits under it. A separate
    thread waits for the worker's end and starts the next one.

    When the worker dies, the requests that it was running fail, the device is RESTARTING, and
    requests are refused until a new worker has loaded every network again. Then the device is UP.
    If the worker does not come up again, the device is DOWN, and the host keeps trying. A model
    that is `Blame` for an end is not loaded again, so that it cannot keep the others down.

    Args:
        device, path: the plugin's name, and its creation function as ``module:function``.
        settings: returns the device's current configuration.
        backoff: decides when to start a worker again.
        launch: starts a process.
        services: the timer, the folder, and for how long a worker may load or query a network.
    """

    def __init__(
        self,
        device: str,
        path: str,
        settings: Callable[[], Mapping[str, str]],
        services: Services,
        backoff: Backoff | None = None,
        launch: Launch = WorkerProcess,
    ) -> None:
        self._device = device
        self._states = services.states
        self._seconds = services.max_load_seconds
        self._backoff = backoff or Backoff()
        self._blame = Blame(device)
        self._workers = Workers(
            device,
            path,
            settings,
            launch,
            services,
            self._blame.judge,
            self._plugin_says,
        )
        self.trials = WorkerTrials(self._workers, self._blame, services)
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._worker_networks: list[WorkerNetwork] = []
        self._closing = self._workers.closing
        self._reason = "it is starting"
        self._up_at = 0.0
        self._watcher = threading.Thread(
            target=self._watch, name=f"headrace-isolation-{device}", daemon=True
        )

    def start(self) -> Mapping[str, Any]:
        """Starts the first worker, and returns what it says about its device.

        Raises:
            Unavailable: the worker did not come up. The message has the plugin's own reason.
        """
        worker = self._workers.start()
        try:
            facts = dict(worker.call("describe", timeout=START_SECONDS)[0])
            with self._lock:
                if self._closing.is_set():  # `stop` has missed this worker
                    raise Unavailable(f"device {self._device} is closed")
                self._worker = worker
            self._watcher.start()
        except BaseException:
            with self._lock:
                self._worker = None
            worker.stop()
            raise
        return facts

    def kill(self) -> None:
        """Ends every worker at once and for good; does not block."""
        for _ in self._workers.kill():
            _log.warning("device %s did not stop in time; its worker is killed", self._device)

    def stop(self) -> None:
        """Ends the worker for good. No network may be loaded any more."""
        self._closing.set()
        with self._lock:
            worker, self._worker = self._worker, None
        self._workers.kill(but=worker)  # those that are being started, for which nobody waits
        if worker is not None:
            worker.stop()
        if self._watcher.ident is not None:
            self._watcher.join()

    # -- the worker --

    def worker(self) -> WorkerProcess:
        """The running worker.

        Raises:
            Unavailable: no worker runs now. The error has the delay after which one should.
        """
        worker = self._worker
        if worker is None or worker.ended.is_set():
            raise self._down()
        return worker

    def call(self, method: str, arguments: Mapping[str, Any]) -> Answer:
        """As `WorkerProcess.call`, on the running worker, which has to answer soon."""
        return self.worker().call(method, arguments, patience=PATIENCE_SECONDS)

    def extend(self, functions: bytes) -> None:
        """Adds operators to the device, now and after every restart. Raises as `call`."""
        self._workers.extend(functions, self.worker())
        self.trials.renew()

    def query(self, work: Work, ask: Callable[[WorkerProcess], T]) -> T:
        """Asks the worker about a network. A stranger's network is asked about in another worker,
        which serves nobody.

        Raises:
            EndedWorker: the model has ended a worker, now or before.
            ResourceExhausted: models of whoever asks have ended too many workers.
            The errors of `call`.
        """
        if not work.asker.trusted:
            return self.trials.run(work, ask)
        self._admit(work, ask)
        with self._blaming(work):
            worker = self.worker()
            with worker.doing(work, self._seconds):
                return ask(worker)

    def load(self, worker_network: WorkerNetwork, token: CancelToken) -> Mapping[str, Any]:
        """Has the worker compile a network, now and after every restart. Another worker, which
        serves nobody, compiles a stranger's network first.

        Returns:
            What the worker says about the network.

        Raises:
            The errors of `query`.
        """
        work = worker_network.loading
        self._admit(work, worker_network.attempt)
        with self._blaming(work):
            worker = self.worker()
            with worker.doing(work, self._seconds):
                facts = worker_network.load(worker, token)
        with self._lock:
            if worker is self._worker:
                self._worker_networks.append(worker_network)
                return facts
        raise self._with_delay(worker.lost())

    def unload(self, worker_network: WorkerNetwork) -> None:
        """Removes a network from the worker. When this returns, its memory has been freed."""
        with self._lock:
            if worker_network in self._worker_networks:
                self._worker_networks.remove(worker_network)
            worker = None if self._worker_networks else self._worker
        worker_network.unload()
        if worker is not None:
            worker.pool.clear()

    def ask(
        self,
        worker_network: WorkerNetwork,
        method: str,
        patience: float = PATIENCE_SECONDS,
        **arguments: Any,
    ) -> Answer:
        """Has the worker do something with a loaded network. Raises as `query`, or Unavailable if
        the worker does not answer within `patience`."""
        with self._blaming(worker_network.running):
            exchange = worker_network.exchange()
            with exchange.worker.doing(worker_network.running):
                given = {"number": exchange.number, **arguments}
                return exchange.worker.call(method, given, patience=patience)

    def run(self, worker_network: WorkerNetwork, job: Job) -> None:
        """Runs a job in the worker. Raises as `Exchange`, or EndedWorker if the job ended it."""
        exchange = worker_network.exchange()
        worker = exchange.worker
        if worker.ended.is_set():
            raise self._down()
        try:
            with worker.doing(worker_network.running):
                exchange(job)
        except WorkerLost as error:
            raise self.lost(worker_network.running, worker.end, error) from error

    def lost(self, work: Work, end: End, error: WorkerLost) -> HeadraceError:
        """The error of a request that was under way when its worker ended."""
        return end.by_request(self._device) if end.only(work) else self._with_delay(error)

    # -- inside --

    def _admit(self, work: Work, attempt: Callable[[WorkerProcess], object]) -> None:
        """Refuses a model that is blamed, and first tries a suspected or a stranger's model in a
        separate worker.

        Raises:
            EndedWorker: the model is blamed, perhaps because of this attempt.
            Any error that `attempt` raises.
        """
        self._blame.check(work)
        if not work.asker.trusted or self._blame.suspects(work):
            self.trials.run(work, attempt)
            self._blame.acquit(work)

    @contextmanager
    def _blaming(self, work: Work) -> Iterator[None]:
        """If the worker ends inside the context, raises an error that blames the model or nobody.

        Raises:
            EndedWorker: the model is blamed.
            Unavailable: the cause is not known. The error has the delay for another try.
        """
        try:
            with self._blame.told(work):
                yield
        except WorkerLost as error:
            raise self._with_delay(error) from error

    def _watch(self) -> None:
        worker = self._worker
        while worker is not None:
            worker.join()
            if self._closing.is_set():
                return
            with self._lock:
                self._worker = None
            self._reason = f"its worker process ended: {worker.end.how}"
            worker = self._restart(useful=worker.useful)

    def _restart(self, *, useful: bool) -> WorkerProcess | None:
        """Starts the next worker with all networks, until it works; None if the host is closing."""
        while True:
            delay = self._backoff.died(time.monotonic(), useful=useful)
            useful = False
            self._up_at = time.monotonic() + delay + self._workers.start_seconds
            state = DeviceState.DOWN if self._backoff.keeps_failing else DeviceState.RESTARTING
            self._states.set(self._device, state, self._reason)
            if self._closing.wait(delay):
                return None
            try:
                worker = self._come_back()
            except Exception as error:  # noqa: BLE001 - the thread that restarts devices may not die
                if self._closing.is_set():
                    return None
                self._reason, known = public_text(error), isinstance(error, HeadraceError)
                text = "device %s did not start again: %s"
                _log.warning(text, self._device, error, exc_info=not known)
                continue
            with self._lock:
                closing = self._closing.is_set()
                self._worker = None if closing else worker
            if closing:
                worker.stop()
                return None
            self._backoff.started(time.monotonic())
            _log.info("device %s is up again", self._device)
            self._states.set(self._device, DeviceState.UP)
            return worker

    def _come_back(self) -> WorkerProcess:
        """Starts a worker with all networks."""
        worker = self._workers.start()
        try:
            self._bring_back(worker)
        except BaseException:
            worker.stop()
            raise
        return worker

    def _bring_back(self, worker: WorkerProcess) -> None:
        """Has the worker load each network. What fails costs that network and no other, unless it
        ended the worker."""
        with self._lock:
            worker_networks = [network for network in self._worker_networks if not network.lost]
        for worker_network in worker_networks:
            if self._closing.is_set():
                return
            try:
                self._blame.check(worker_network.loading, again=True)
                with worker.doing(worker_network.loading, self._seconds):
                    worker_network.load(worker)
            except WorkerLost:
                raise
            except HeadraceError as error:
                _log.error("a network of device %s was lost: %s", self._device, error)
                worker_network.give_up(error)
            except Exception as error:  # noqa: BLE001 - the other networks must come back
                _log.exception("a network of device %s was lost", self._device)
                worker_network.give_up(Internal(type(error).__name__))

    def _plugin_says(self, worker: WorkerProcess, state: str, reason: str) -> None:
        if worker is self._worker and state in DeviceState.__members__:
            self._states.set(self._device, DeviceState(state), reason)

    def _down(self) -> Unavailable:
        return self._with_delay(
            Unavailable(f"device {self._device} is being started again: {self._reason}")
        )

    def _with_delay(self, error: Unavailable) -> Unavailable:
        left = self._up_at - time.monotonic()
        error.retry_delay_seconds = max(left, self._workers.start_seconds, _SHORTEST_DELAY_SECONDS)
        return error
