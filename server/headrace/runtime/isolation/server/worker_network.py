"""A network in a worker, with everything needed to load it again in the next worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

from headrace.ipc.segments import write_file
from headrace.runtime.device.load import Load
from headrace.runtime.errors import EndedWorker, HeadraceError, Internal, Unavailable
from headrace.runtime.execution.cancel import CancelToken, current_token
from headrace.runtime.intake import onnx_bytes
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.model_files import OWN, ModelFiles
from headrace.runtime.isolation.server.blame import RUN, Work
from headrace.runtime.isolation.server.exchange import NetworkExchange
from headrace.runtime.isolation.server.process import Answer, Left, WorkerProcess
from headrace.runtime.isolation.wire.descriptions import query_from_json
from headrace.runtime.network.facts import FACTS, facts_to_json
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions, options_to_json
from headrace.runtime.transform.query import QueryResult

_log = logging.getLogger(__name__)

_UNLOAD_SECONDS: Final = 3.0
"""So long an unload waits for a worker that hangs, once. Networks of all devices are closed one
after the other."""


class WorkerNetwork:
    """Thread-safe; `_lock` guards the setting of `loaded` and `_unloaded`.

    Attributes:
        loading, running: the work of loading the network, and of running it.
        config: returns the configuration to load with, for each new worker.
        loaded: sends requests while the network is in a worker and not lost.

    Args:
        load: what the device is asked to load.
        place: id of the network's device.
    """

    def __init__(self, load: Load, place: str) -> None:
        self.loading = Work(load.network, place, "imported" if load.native else "loaded")
        self.running = Work(load.network, place, RUN)
        self.config: Callable[[], Mapping[str, str]] = lambda: load.config
        self._load = load
        self._lock = threading.Lock()
        self.loaded: NetworkExchange | None = None
        self._unloaded = False
        self._lost: HeadraceError | None = None

    @property
    def lost(self) -> bool:
        """Whether the network will not be loaded again."""
        return self._lost is not None

    @property
    def number(self) -> int | None:
        """The network's number in its worker; None while it is in no worker."""
        exchange = self.loaded
        return exchange.number if exchange is not None else None

    def exchange(self) -> NetworkExchange:
        """Returns the exchange that sends requests to the network.

        Raises:
            EndedWorker: the network's model has ended workers.
            Unavailable: the last worker could not load the network, or the network is not loaded.
        """
        lost = self._lost
        if isinstance(lost, EndedWorker):
            raise EndedWorker(lost.message, field="network", metadata=lost.metadata)
        if lost is not None:
            why = "the server's log explains" if isinstance(lost, Internal) else lost.message
            message = f"the network was lost with its worker: {why}; load it again"
            raise Unavailable(message)
        exchange = self.loaded
        if exchange is None:
            raise Unavailable("the network is not loaded")
        return exchange

    def load(self, worker: WorkerProcess, token: CancelToken | None = None) -> Mapping[str, Any]:
        """Has the worker compile the network. If nobody wants it any more when it is compiled, the
        worker forgets it.

        Raises:
            The errors of `WorkerProcess.call`.
        """
        number = next(worker.numbers)
        try:
            facts = ask_to_load(worker, number, self._load, self.config(), token)
        except Left as left:
            left.answer.add_done_callback(partial(_forget, worker, number))
            raise
        with self._lock:
            self.loaded = NetworkExchange(worker, number)
            unwanted = self._unloaded
        if unwanted:
            self.unload()
        return facts

    def attempt(self, worker: WorkerProcess) -> None:
        """Has a worker that serves nobody compile the network, and forget it. Raises as `load`."""
        try_load(worker, self._load, self.config())

    def kill(self) -> None:
        """Kills the network's worker, because a run does not end."""
        exchange = self.loaded
        if exchange is not None:
            _log.error("a run ignored its EXECUTION_TIMEOUT; its worker is killed")
            exchange.worker.kill("a run ignored its EXECUTION_TIMEOUT", self.running)

    def give_up(self, reason: HeadraceError) -> None:
        """Records that the network will not be loaded again, and why."""
        with self._lock:
            self._lost, self.loaded = reason, None

    def unload(self) -> None:
        """Removes the network from its worker, if the worker still runs."""
        with self._lock:
            self._unloaded = True
            exchange, self.loaded = self.loaded, None
        self.config = dict  # it refers to the network that has this one, with its weights
        if exchange is not None:
            exchange.worker.models.pop(exchange.number, None)
            with suppress(Unavailable):  # the worker has ended, and the network with it
                exchange.worker.order("unload", {"number": exchange.number}, _UNLOAD_SECONDS)


def ask_to_load(
    worker: WorkerProcess,
    number: int,
    load: Load,
    config: Mapping[str, str],
    token: CancelToken | None,
) -> Mapping[str, Any]:
    """Has a worker compile a network, and returns what it says about it. The worker gets the graph
    of a network that need not be read when it asks for it.

    Args:
        number: what the network is called there.

    Raises:
        The errors of `WorkerProcess.call`.
    """
    arguments = {"number": number, "config": dict(config), "options": options_to_json(load.options)}
    network = load.network
    with ExitStack() as stack:
        files = []
        if load.native or not network.is_read:
            arguments["facts"] = facts_to_json(network, FACTS)
            worker.models[number] = partial(_model, network)
        else:
            files.append(stack.enter_context(write_file(onnx_bytes.serialize(network.model))))
        if load.native:
            files.append(stack.enter_context(write_file((load.native,))))
        try:
            facts, _ = worker.call("load", arguments, files, token=token)
        except BaseException:
            worker.models.pop(number, None)
            raise
    return dict(facts)


def _model(network: Network) -> ModelFiles:
    return network.source or ModelFiles.written(network.chunks(), {OWN: network.digest}, Limits())


def try_load(worker: WorkerProcess, load: Load, config: Mapping[str, str]) -> None:
    """Has a worker compile a network, and forget it. Raises as `ask_to_load`."""
    number = next(worker.numbers)
    ask_to_load(worker, number, load, config, load.token)
    worker.models.pop(number, None)
    worker.call("unload", {"number": number}, token=load.token)


def _forget(worker: WorkerProcess, number: int, answer: Future[Answer]) -> None:
    if answer.exception() is None:
        worker.tell("unload", {"number": number})


def ask_about(
    network: Network, config: Mapping[str, str], options: NetworkOptions, worker: WorkerProcess
) -> QueryResult:
    """Asks a worker which layers of a network its device would run.

    Raises:
        The errors of `WorkerProcess.call`.
    """
    arguments = {"config": dict(config), "options": options_to_json(options)}
    with write_file(onnx_bytes.serialize(network.model)) as file:
        facts, _ = worker.call("query", arguments, [file], token=current_token())
    return query_from_json(facts)
