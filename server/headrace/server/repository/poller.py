"""The thread that looks at the model repository at regular intervals."""

from __future__ import annotations

import logging
import threading

from headrace.server.logs import log_internal_error
from headrace.server.repository.repository import Repository

_log = logging.getLogger(__name__)

_STOP_SECONDS = 2.0


class Poller:
    """Looks every `seconds` seconds on the thread ``headrace-repository``. With 0, never looks."""

    def __init__(self, repository: Repository, seconds: float) -> None:
        self._repository = repository
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-repository", daemon=True)

    def start(self) -> None:
        if self._seconds:
            self._thread.start()

    def stop(self) -> None:
        """Begins no further look, and waits a short time for a look in progress.

        A short wait is enough: a look cannot change anything once the core has stopped.
        """
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        failed = False
        while not self._stopped.wait(self._seconds):
            try:
                self._repository.poll()
                failed = False
            except OSError as error:
                if not failed:
                    _log.error("the model repository cannot be read: %s", error.strerror)
                failed = True
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                log_internal_error(error, where="looking at the model repository")
