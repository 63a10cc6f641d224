"""A device's worker for as long as the device lives: started, and started again when it dies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.runtime.cancel import CancelToken
from headrace.runtime.device_state import DeviceState, DeviceStates
from headrace.runtime.errors import HeadraceError, Unavailable
from headrace.runtime.isolation.backoff import Backoff
from headrace.runtime.isolation.process import Answer, WorkerLost, WorkerProcess
from headrace.runtime.isolation.resident import Resident
from headrace.runtime.isolation.shared_memory import write_file
from headrace.runtime.job import Job

_log = logging.getLogger(__name__)

Launch = Callable[[str], WorkerProcess]

_START_SECONDS = 120.0
_SHORTEST_DELAY_SECONDS = 0.1


class WorkerHost:
    """Thread-safe. `_lock` guards the worker, the residents and the extensions; nothing waits under
    it. A thread of its own waits for the worker's end and starts the next one.

    When the worker dies, what it was running fails, the device is RESTARTING, and requests are
    refused until a new worker has every network again; then the device is UP. A device whose worker
    does not come up again is DOWN, and tried on. A network that workers keep dying of
    is given up, so that it cannot keep the others down.

    Args:
        device, path: the plugin, by its name and as ``module:function``.
        settings: gives the device's configuration as it is now.
        states: is told of the device's state.
        backoff: says when to start a worker again.
        launch: starts a process.
        folder: as `Services`.
    """

    def __init__(
        self,
        device: str,
        path: str,
        settings: Callable[[], Mapping[str, str]],
        states: DeviceStates,
        backoff: Backoff | None = None,
        launch: Launch = WorkerProcess,
        folder: Path | None = None,
    ) -> None:
        self._device = device
        self._path = path
        self._settings = settings
        self._states = states
        self._backoff = backoff or Backoff()
        self._launch = launch
        self._folder = folder
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._newest: WorkerProcess | None = None  # which may not be `_worker` yet, or any more
        self._residents: list[Resident] = []
        self._extensions: list[bytes] = []
        self._closing = threading.Event()
        self._reason = "it is starting"
        self._up_at = 0.0
        self._start_seconds = 0.0
        self._watcher = threading.Thread(
            target=self._watch, name=f"headrace-isolation-{device}", daemon=True
        )

    def start(self) -> None:
        """Starts the first worker.

        Raises:
            Unavailable: it did not come up; with the plugin's own reason.
        """
        self._worker = self._start()
        self._watcher.start()

    def kill(self) -> None:
        """Ends the worker at once, and for good; does not block."""
        self._closing.set()
        with self._lock:
            newest = self._newest
        if newest is not None and not newest.ended.is_set():
            _log.warning("device %s did not stop in time; its worker is killed", self._device)
            newest.kill()

    def stop(self) -> None:
        """Ends the worker for good; no network is left."""
        self._closing.set()
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()
        if self._watcher.ident is not None:
            self._watcher.join()

    # -- the worker --

    def worker(self) -> WorkerProcess:
        """
        Raises:
            Unavailable: there is none now; with the delay after which there should be.
        """
        worker = self._worker
        if worker is None or worker.ended.is_set():
            raise self._down()
        return worker

    def call(self, method: str, arguments: Mapping[str, Any]) -> Answer:
        """As `WorkerProcess.call`, of the worker that there is."""
        return self.worker().call(method, arguments)

    def extend(self, functions: bytes) -> None:
        """Gives the device operators, now and after every restart. Raises as `call`."""
        self._extend(self.worker(), functions)
        with self._lock:
            self._extensions.append(functions)

    def load(self, resident: Resident, token: CancelToken) -> Mapping[str, Any]:
        """Has the worker compile a network, now and after every restart.

        Returns:
            What the worker says of it.

        Raises:
            As `call`.
        """
        worker = self.worker()
        facts = resident.load(worker, token)
        with self._lock:
            if worker is self._worker:
                self._residents.append(resident)
                return facts
        raise self._with_delay(worker.lost())

    def unload(self, resident: Resident) -> None:
        """Takes a network out of the worker; memory has been given back then."""
        with self._lock:
            if resident in self._residents:
                self._residents.remove(resident)
            worker = None if self._residents else self._worker
        resident.unload()
        if worker is not None:
            worker.pool.clear()

    def run(self, resident: Resident, job: Job) -> None:
        """Runs a job in the worker. Raises as `Exchange`."""
        exchange = resident.exchange()
        if exchange.worker.ended.is_set():
            raise self._down()
        try:
            exchange(job)
        except Unavailable as error:
            raise self._with_delay(error) from error

    # -- inside --

    def _start(self) -> WorkerProcess:
        """A worker with the device and its extensions, but without its networks."""
        began = time.monotonic()
        worker = self._launch(self._device)
        with self._lock:
            self._newest = worker
        if self._closing.is_set():
            worker.kill()  # `kill` may not have seen it
        worker.states = self._plugin_says
        try:
            arguments = {
                "name": self._device,
                "path": self._path,
                "config": dict(self._settings()),
                "folder": str(self._folder or ""),
            }
            worker.call("create", arguments, timeout=_START_SECONDS)
            with self._lock:
                extensions = list(self._extensions)
            for functions in extensions:
                self._extend(worker, functions)
        except BaseException:
            worker.stop()
            raise
        self._start_seconds = time.monotonic() - began
        return worker

    def _watch(self) -> None:
        worker = self._worker
        while worker is not None:
            worker.ended.wait()
            worker.join()
            if self._closing.is_set():
                return
            with self._lock:
                self._worker = None
            self._reason = f"its worker process ended: {worker.reason}"
            worker = self._restart(useful=worker.useful)

    def _restart(self, *, useful: bool) -> WorkerProcess | None:
        """The next worker, with everything in it, however long that takes; None at the end."""
        while True:
            delay = self._backoff.died(time.monotonic(), useful=useful)
            useful = False
            self._up_at = time.monotonic() + delay + self._start_seconds
            state = DeviceState.DOWN if self._backoff.keeps_failing else DeviceState.RESTARTING
            self._states.set(self._device, state, self._reason)
            if self._closing.wait(delay):
                return None
            try:
                worker = self._start()
                self._bring_back(worker)
            except HeadraceError as error:
                self._reason = error.message
                _log.warning("device %s did not start again: %s", self._device, error)
                continue
            except Exception as error:  # noqa: BLE001 - the thread that restarts devices may not die
                self._reason = f"{type(error).__name__}: {error}"
                _log.exception("device %s did not start again", self._device)
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

    def _bring_back(self, worker: WorkerProcess) -> None:
        with self._lock:
            residents = [each for each in self._residents if not each.lost]
        for resident in residents:
            if self._closing.is_set():
                return
            try:
                resident.load(worker)
            except WorkerLost:
                resident.crashed()
                worker.stop()
                raise
            except HeadraceError as error:
                _log.error("a network of device %s was lost: %s", self._device, error)
                resident.give_up(error.message)

    @staticmethod
    def _extend(worker: WorkerProcess, functions: bytes) -> None:
        with write_file((functions,)) as file:
            worker.call("extend", {}, [file])

    def _plugin_says(self, state: str, reason: str) -> None:
        if self._worker is not None and state in DeviceState.__members__:
            self._states.set(self._device, DeviceState(state), reason)

    def _down(self) -> Unavailable:
        return self._with_delay(
            Unavailable(f"device {self._device} is being started again: {self._reason}")
        )

    def _with_delay(self, error: Unavailable) -> Unavailable:
        left = self._up_at - time.monotonic()
        error.retry_delay_seconds = max(left, self._start_seconds, _SHORTEST_DELAY_SECONDS)
        return error
