"""Starts a device's workers, and knows all that live."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from headrace.ipc.segments import write_file
from headrace.runtime.device.services import Services
from headrace.runtime.errors import Unavailable
from headrace.runtime.isolation.server.blame import End
from headrace.runtime.isolation.server.process import WorkerProcess

_log = logging.getLogger(__name__)

Launch: TypeAlias = Callable[[str], WorkerProcess]

START_SECONDS: Final = 120.0


class Workers:
    """Thread-safe. `_lock` guards the living workers and the extensions; nothing waits under it.

    Args:
        device, path, settings, launch, services: as `WorkerHost`.
        judge: as `WorkerProcess.judge`.
        says: called with a worker, and the state and the reason that its plugin reports.
        isolated: as `Services.isolated`.

    Attributes:
        closing: set when no worker may live any more.
        start_seconds: how long the last start took.
    """

    def __init__(
        self,
        device: str,
        path: str,
        settings: Callable[[], Mapping[str, str]],
        launch: Launch,
        services: Services,
        judge: Callable[[End], None],
        says: Callable[[WorkerProcess, str, str], None],
        *,
        isolated: bool = True,
    ) -> None:
        self.closing = threading.Event()
        self.start_seconds = 0.0
        self._device = device
        self._path = path
        self._settings = settings
        self._launch = launch
        self._services = services
        self._judge = judge
        self._says = says
        self._isolated = isolated
        self._lock = threading.Lock()
        self._living: set[WorkerProcess] = set()
        self._extensions: list[bytes] = []

    def start(self) -> WorkerProcess:
        """Starts a worker with the device and its extensions, but without its networks. From then
        on the worker is killed if it hangs.

        Raises:
            Unavailable: the worker did not come up, or the system has no process for it.
            Any error that the plugin raises.
        """
        began = time.monotonic()
        try:
            worker = self._launch(self._device)
        except (OSError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__  # no path
            raise Unavailable(f"no process for device {self._device}: {why}") from error
        try:
            worker.judge = self._judge
            worker.states = partial(self._says, worker)
            with self._lock:
                self._living = {each for each in self._living if not each.ended.is_set()} | {worker}
            if self.closing.is_set():
                worker.kill()  # `kill` may have missed this worker
            # A process beside those that compute writes for nobody.
            weights = self._services.weights if self._isolated else None
            arguments = {
                "name": self._device,
                "path": self._path,
                "config": dict(self._settings()),
                "folder": str(self._services.folder or ""),
                "weights": None if weights is None else weights.to_json(),
                "isolated": self._isolated,
            }
            worker.call("create", arguments, timeout=START_SECONDS)
            threading.Thread(
                target=worker.watch, name=f"headrace-pulse-{self._device}", daemon=True
            ).start()
            with self._lock:
                extensions = list(self._extensions)
            for functions in extensions:
                _extend(worker, functions)
        except BaseException:
            worker.stop()
            raise
        self.start_seconds = time.monotonic() - began
        return worker

    def extend(self, functions: bytes, worker: WorkerProcess | None = None) -> None:
        """Adds operators to a worker, and to all that are started later. Raises as
        `WorkerProcess.call`."""
        if worker is not None:
            _extend(worker, functions)
        with self._lock:
            # The next worker may have been started without them, if this one has ended.
            if worker is not None and worker.ended.is_set():
                raise worker.lost()
            self._extensions.append(functions)

    def kill(self, *, but: WorkerProcess | None = None) -> list[WorkerProcess]:
        """Ends every worker `but` this at once; does not block. No worker is started any more.

        Returns:
            Those that it ended.
        """
        self.closing.set()
        with self._lock:
            living = [
                worker for worker in self._living if not (worker is but or worker.ended.is_set())
            ]
        for worker in living:
            worker.kill("its device is closed")
        return living


def _extend(worker: WorkerProcess, functions: bytes) -> None:
    with write_file((functions,)) as file:
        worker.call("extend", {}, [file])
