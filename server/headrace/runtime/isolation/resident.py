"""A network in a worker, and all that makes it again in the next one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from headrace.runtime import onnx_bytes
from headrace.runtime.cancel import CancelToken
from headrace.runtime.errors import Unavailable
from headrace.runtime.isolation.exchange import Exchange
from headrace.runtime.isolation.process import WorkerProcess
from headrace.runtime.isolation.shared_memory import write_file
from headrace.runtime.network import Network
from headrace.runtime.network_options import NetworkOptions, options_to_json

_log = logging.getLogger(__name__)

_CRASHES_ALLOWED = 3


class Resident:
    """Thread-safe; `_lock` guards where it is and whether it is still wanted.

    Args:
        network: as it was given, before any transformation.
        config: of the load. `config` gives it again for each worker.
        native: the backend's own bytes of an import; None for a load.
    """

    def __init__(
        self,
        network: Network,
        config: Mapping[str, str],
        options: NetworkOptions,
        native: bytes | None,
    ) -> None:
        self._network = network
        self.config: Callable[[], Mapping[str, str]] = lambda: config
        self._options = options
        self._native = native
        self._lock = threading.Lock()
        self._exchange: Exchange | None = None
        self._unloaded = False
        self._crashes = 0
        self._lost = ""

    @property
    def lost(self) -> str:
        """Why it is not tried again; empty while it is."""
        return self._lost

    @property
    def number(self) -> int | None:
        """What its worker calls it; None while it is in none."""
        exchange = self._exchange
        return exchange.number if exchange is not None else None

    def exchange(self) -> Exchange:
        """Where to send requests.

        Raises:
            Unavailable: no worker could be brought to take the network.
        """
        if self._lost:
            raise Unavailable(f"the network was lost with its worker: {self._lost}; load it again")
        exchange = self._exchange
        if exchange is None:
            raise Unavailable("the network is not loaded")
        return exchange

    def load(self, worker: WorkerProcess, token: CancelToken | None = None) -> Mapping[str, Any]:
        """Has the worker compile it.

        Raises:
            As `WorkerProcess.call`.
        """
        arguments = {"config": dict(self.config()), "options": options_to_json(self._options)}
        with ExitStack() as stack:
            model = onnx_bytes.serialize(self._network.model)
            files = [stack.enter_context(write_file(model))]
            if self._native is not None:
                files.append(stack.enter_context(write_file((self._native,))))
            facts, _ = worker.call("load", arguments, files, token=token)
        with self._lock:
            self._exchange = Exchange(worker, facts["number"])
            self._crashes = 0
            unwanted = self._unloaded
        if unwanted:
            self.unload()
        return dict(facts)

    def kill(self) -> None:
        """Ends the worker that it is in, for a run there that does not end by itself."""
        exchange = self._exchange
        if exchange is not None:
            _log.error("a run ignored its EXECUTION_TIMEOUT; its worker is killed")
            exchange.worker.kill()

    def give_up(self, reason: str) -> None:
        """It will not be tried again."""
        self._lost = reason

    def crashed(self) -> None:
        """A worker died while it compiled the network."""
        self._crashes += 1
        if self._crashes >= _CRASHES_ALLOWED:
            self.give_up(f"{self._crashes} worker processes in a row died while they compiled it")

    def unload(self) -> None:
        """Takes it out of its worker, if that lives."""
        with self._lock:
            self._unloaded = True
            exchange, self._exchange = self._exchange, None
        if exchange is not None:
            with suppress(Unavailable):  # it went with its worker
                exchange.worker.call("unload", {"number": exchange.number})
