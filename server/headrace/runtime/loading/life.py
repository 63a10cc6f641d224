"""The life of networks: they are loaded beside those that serve, saved, published, retired and
closed.

A cancel, an unload and the load itself decide under one lock which of them was first. So a
cancelled load never succeeds, and the store has exactly the networks that exist. The model may be
large, so it is written before, and only its name is saved under the lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from headrace.runtime.config.standard_keys import CACHE_DIR
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import (
    Cancelled,
    HeadraceError,
    may_pass,
    public_text,
)
from headrace.runtime.execution.trace import Span, ends_with, parts_of, timed
from headrace.runtime.loading.batch_size import check_batch_size
from headrace.runtime.loading.entry import (
    COLD,
    NetworkEntry,
    NetworkKey,
    NetworkState,
    Tenancy,
    plain_name,
)
from headrace.runtime.loading.executor import LoadExecutor, pass_on, together
from headrace.runtime.loading.memory_budget import MemoryBudget, WeightSize
from headrace.runtime.loading.memory_room import MemoryRoom
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.runtime.loading.shadows.shadow import Shadow
from headrace.runtime.loading.store import NetworkStore
from headrace.runtime.loading.warm_up import run_warm_up
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.metrics.series import NOTES
from headrace.runtime.network.memory import Weights, forget_locals
from headrace.runtime.network.network import Network
from headrace.runtime.system.garbage import count_loaded
from headrace.runtime.system.graph_memory import free_graphs
from headrace.runtime.system.interruption import interruptible
from headrace.runtime.system.load_stages import LoadStages, told
from headrace.runtime.system.process_memory import family_bytes
from headrace.runtime.transform.options import LoadRequest

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """The data kept with a network: the request that loaded it, and the network as it came.

    `network` is None before the network is read and after its load has failed.
    """

    request: LoadRequest
    network: Network | None = None

    @property
    def given(self) -> Network:
        """The network as it came. The network must be loaded."""
        assert self.network is not None
        return self.network


@dataclass(eq=False, slots=True)
class _Load:
    """A running load.

    Attributes:
        budgets: the memory budgets that it counts for.
        cold: whether its network was listed before, as known or evicted.
        remains: what it left behind if it failed.
    """

    entry: NetworkEntry
    on_disk: bool
    stages: LoadStages
    budgets: frozenset[str] = frozenset()
    cold: bool = False
    remains: Weights | None = None


class NetworkLife:
    """Loads and unloads networks. Thread-safe: `_changing` guards the running loads. It also orders
    saving, publishing and the removal of names. The locks of the registry, the counters and the
    store are taken under it.

    Args:
        networks: the registry of networks.
        loads: the threads that load and close.
        store: saves clients' networks. With None nothing is saved.
        budget: the memory that networks may take.
        note: called with a network that will be saved, so that its model need not be read after a
            restart.

    Attributes:
        room: the memory that they take.
    """

    def __init__(
        self,
        networks: NetworkRegistry,
        counters: Counters,
        loads: LoadExecutor,
        store: NetworkStore | None,
        budget: MemoryBudget,
        note: Callable[[Network], None],
    ) -> None:
        self.room = MemoryRoom(budget, self._evict, networks.cold, family_bytes)
        networks.cold.left = self.room.look_again
        self._networks = networks
        self._counters = counters
        self._loads = loads
        self._store = store
        self._note = note
        self._changing = threading.Lock()
        self._loading: dict[Future[NetworkEntry], _Load] = {}

    def load(
        self,
        request: LoadRequest,
        read: Callable[[], Network],
        compile_network: Callable[[NetworkEntry], ExecutableNetwork],
        *,
        replace: bool,
        on_disk: bool = False,
        tenancy: Tenancy,
        span: Span | None = None,
        budgets: frozenset[str] = frozenset(),
        cold: bool = False,
    ) -> Future[NetworkEntry]:
        """Loads a network on a loading thread, once there is room for it in memory.

        Args:
            read: reads the network.
            compile_network: makes the network executable. The entry has the network's record.
            on_disk: whether the network is already in the state directory or the model repository.
                Such a network is not saved, and if its load fails, it stays in the list with the
                reason.
            span: ends with the load.
            budgets: the memory budgets that it counts for.
            cold: whether the network is listed as known or evicted. It stays so if its load fails
                for a reason that may pass.

        Raises:
            AlreadyExists, ResourceExhausted, InvalidArgument: the name cannot be taken.
            The future raises what `read` and `compile_network` raise, and Cancelled.
        """
        entry = self._networks.reserve(
            request.name,
            str(request.device),
            Record(request),
            version=request.version,
            tenancy=tenancy,
            replace=replace,
            cold=cold,
        )
        load = _Load(entry, on_disk, LoadStages(parts_of(span)), budgets, cold)
        begin = timed(span, partial(self._load, load, read, compile_network))
        try:
            future = self._loads.submit(
                begin,
                entry.token,
                tenancy.asker,
                # Loads that hold all places may wait for the room of the pipeline's other steps.
                at_once=cold and entry.key[:2] in self._networks.cold.kept_together(),
                bounded=not cold,  # few at a time, and requests of all identities wait for one
            )
        except BaseException as error:
            self._networks.fail(entry, str(error), keep=False)
            raise
        with self._changing:
            self._loading[future] = load
        future.add_done_callback(self._ended)
        return ends_with(span, future)

    def know(self, request: LoadRequest, tenancy: Tenancy) -> NetworkEntry:
        """Lists a network that its first request loads. Raises as `NetworkRegistry.know`."""
        return self._networks.know(
            request.name,
            str(request.device),
            Record(request),
            version=request.version,
            tenancy=tenancy,
            on_replaced_drained=self._close_later,
        )

    def under_way(self, name: str, version: str = "") -> Future[NetworkEntry] | None:
        """A load of a network of that name that is still wanted, if there is one.

        Args:
            version: empty for any.
        """
        with self._changing:
            for future, load in self._loading.items():
                of, loaded, _ = load.entry.key
                if of == name and version in ("", loaded) and load.entry.given_up is None:
                    return future
        return None

    def list_failed(self, request: LoadRequest, reason: str, owner: object = None) -> None:
        """Lists a network whose load could not begin.

        Raises:
            AlreadyExists, InvalidArgument: the name cannot be taken.
        """
        self._networks.list_failed(
            request.name,
            str(request.device),
            Record(request),
            reason,
            version=request.version,
            owner=owner,
        )

    def cancel(self, future: Future[NetworkEntry], error: HeadraceError) -> None:
        """Ends a load for good, unless its network is already published."""
        with self._changing:
            load = self._loading.get(future)
        if load is not None:
            self._give_up(load.entry, error)

    def unload(
        self,
        name: str,
        version: str = "",
        *,
        stays: Callable[[NetworkEntry], bool] = lambda _: False,
    ) -> Future[None]:
        """Removes a network now, and also removes it from the store. The future is done when the
        memory is free.

        If a version is still being loaded, also in place of one that serves, its load is cancelled,
        and the future does not wait for it.

        Args:
            version: the version to remove; empty for all versions of the name.
            stays: says which of these versions stay.

        Raises:
            NotFound: no network has the name, or no network of that name has the version.
        """
        error = Cancelled(f"network {plain_name(name)!r} was unloaded while it was loading")
        with self._changing:
            self._networks.find(name, version)
            there = self._networks.versions(name)
            there += [load for load in self._networks.loads(name) if load not in there]
            leaving = [
                each for each in there if version in ("", each.key.version) and not stays(each)
            ]
            if self._store is not None and leaving:
                versions = [each.key.version for each in leaving]
                whole = len(leaving) == len(there)
                self._store.forget_network(name, None if whole else versions)
            loading = [load for load in leaving if self._networks.give_up(load, error)]
            gone = {load.key.version for load in leaving}

            def remains(entry: NetworkEntry) -> bool:
                # A cold network is listed as its load, while that is under way.
                cold = entry.state in COLD and entry.key.version in gone
                return entry not in leaving and not cold

            closed = self._retire(name, remains)
            if not self._networks.has(name):
                self._counters.forget_cold(name)
        for load in loading:
            load.token.cancel(error)
        return closed

    def forget_kept(self, name: str) -> None:
        """Removes a network from the store after a network of the repository has replaced it."""
        with self._changing:
            if self._store is not None:
                self._store.forget_network(name)

    def share(self, name: str, shares: Mapping[str, int], default: Mapping[str, int]) -> None:
        """Sets how versions share a network's requests, and saves the shares. Raises as
        `NetworkRegistry.share`.

        Args:
            shares: version to per cent. An empty mapping goes back to `default`.
        """
        with self._changing:
            self._networks.find(name)
            self._networks.share(name, shares or default, ahead=not shares)
            if self._store is not None:
                self._store.save_shares(name, shares)

    def save_shadow(self, name: str, shadow: Callable[[str], Shadow]) -> None:
        """Saves the shadow of a network that is there.

        Args:
            shadow: says what it is now.
        """
        with self._changing:
            if self._store is not None and self._networks.has(name):
                self._store.save_shadow(name, shadow(name))

    def stop(self) -> None:
        """Cancels loads, then closes every network once its requests have ended. The store keeps
        them."""
        for entry in self._networks.entries():
            self._give_up(entry, Cancelled("the server is shutting down"))
        self._loads.stop_loading()
        names = {entry.key.name for entry in self._networks.entries()}
        for closed in [self._retire(name) for name in names]:
            if (error := closed.exception()) is not None:  # the others still close
                _log.error("a network did not close", exc_info=error)

    # -- inside --

    def _load(
        self,
        load: _Load,
        read: Callable[[], Network],
        compile_network: Callable[[NetworkEntry], ExecutableNetwork],
    ) -> NetworkEntry:
        start, entry, stages = time.monotonic(), load.entry, load.stages
        request: LoadRequest = entry.record.request
        try:
            self._raise_if_cancelled(entry)
            with interruptible(entry.token), stages.within():
                with stages.timed("read"):
                    network = read()
                check_batch_size(network, request)
                entry.record = Record(request, network)
                self._networks.count_bytes(entry, lambda: sum(map(len, network.chunks())))
                if load.budgets:
                    weights = WeightSize(network.weight_bytes, network.widened_bytes)
                    self.room.take(entry, load.budgets, weights)
                with stages.timed("compile"):
                    executable = compile_network(entry)
            try:
                with stages.timed("publish"):
                    for warm_up in request.warm_ups:
                        run_warm_up(executable.behind, warm_up, entry.token)
                    entry.load_seconds = time.monotonic() - start
                    self._save_and_publish(load, executable)
            except BaseException:
                executable.close()
                del executable
                raise
        except BaseException as error:
            self._fail(load, error)
            raise
        entry.stage_seconds = stages.seconds
        self._counters.observe_stages(stages.seconds)
        device, took = executable.place.device, told(stages.seconds)
        facts = {"network": entry.key.name, "version": entry.key.version, "device": device}
        text = "network %s is loaded on %s, in %.3f s: %s"
        _log.info(text, shown(entry), device, entry.load_seconds, took, extra=facts)
        network.free_memory()  # not entry.record.network: it may be None by now
        count_loaded(network.size)
        return entry

    def _ended(self, future: Future[NetworkEntry]) -> None:
        with self._changing:
            load = self._loading.pop(future)
        error = future.exception()
        if error is not None and load.entry.state is NetworkState.LOADING:
            self._fail(load, error)  # it has never begun
        end = partial(self._settle, load.entry)
        if load.remains is not None:
            forget_locals(error)
            end = partial(self._clear, load.entry, load.remains)
        self._loads.close(end, load.entry.tenancy.asker.name)

    def _settle(self, entry: NetworkEntry) -> None:
        free_graphs()  # copies that were only needed to compile
        self.room.measured(entry)

    def _clear(self, entry: NetworkEntry, remains: Weights) -> None:
        remains.give_back()
        self.room.give_back(entry)

    def _evict(self, entry: NetworkEntry, sequences: Collection[str] = ()) -> bool:
        """Takes a loaded network out of memory, as `NetworkRegistry.evict`. Returns whether it
        does."""
        of_client = entry.tenancy.residence.of_client

        def record_of_cold(record: Record) -> Record:
            return record if of_client else replace(record, network=None)

        close = partial(self._close_later, model_stays=of_client)
        if not self._networks.evict(entry, record_of_cold, close, sequences):
            return False
        name, version, _ = entry.key
        facts = {"network": name, "version": version}
        _log.info("network %s leaves memory for others", shown(entry), extra=facts)
        return True

    def _give_up(self, entry: NetworkEntry, error: HeadraceError) -> None:
        with self._changing:
            in_time = self._networks.give_up(entry, error)
        if in_time:
            entry.token.cancel(error)

    def _save_and_publish(self, load: _Load, executable: ExecutableNetwork) -> None:
        entry = load.entry
        self._raise_if_cancelled(entry)
        record: Record = entry.record
        store = None if load.on_disk else self._store
        by_name = record.request.reference is not None
        if store is not None and not by_name and executable.config[CACHE_DIR]:
            self._note(record.given)  # not once it serves: if this raises, the network is closed
        kept = nullcontext("") if store is None or by_name else store.keep_model(record.given)
        with kept as model, self._changing:
            self._raise_if_cancelled(entry)
            if store is not None:
                store.save_network(record.request, model, alone=entry.tenancy.owner is None)
            name, version, _ = entry.key
            counters = self._counters.network(name, executable.place.device, version)
            counters.observe_load(entry.load_seconds)
            executable.count_as(plain_name(name), counters)
            if executable.notes:
                counters.series.get(NOTES).add(len(executable.notes))
            self._networks.publish(entry, executable, self._close_later)

    def _fail(self, load: _Load, error: BaseException) -> None:
        entry = load.entry
        record: Record = entry.record
        load.remains = Weights(
            record.network, stays=load.cold and entry.tenancy.residence.of_client
        )
        entry.record = replace(record, network=None)
        with self._changing:
            wanted = entry.given_up is None
            cold = load.cold and may_pass(error)
            self._networks.fail(
                entry, public_text(error), keep=load.on_disk and wanted and not cold
            )

    @staticmethod
    def _raise_if_cancelled(entry: NetworkEntry) -> None:
        error = entry.token.error or entry.given_up
        if error is not None:
            raise error

    def _retire(
        self, name: str, but: Callable[[NetworkEntry], bool] = lambda _: False
    ) -> Future[None]:
        """Removes a name's versions. The future is done when they are closed."""
        closing: dict[NetworkKey, Future[None]] = {}
        lock = threading.Lock()  # guards the above

        def closed(key: NetworkKey) -> Future[None]:
            with lock:
                return closing.setdefault(key, Future())

        def close(entry: NetworkEntry) -> None:
            self._close_later(entry).add_done_callback(partial(pass_on, closed(entry.key)))

        return together([closed(each.key) for each in self._networks.retire(name, close, but=but)])

    def _close_later(self, entry: NetworkEntry, *, model_stays: bool = False) -> Future[None]:
        close = partial(self._close, entry, model_stays=model_stays)
        return self._loads.close(close, entry.tenancy.asker.name)

    def _close(self, entry: NetworkEntry, *, model_stays: bool) -> None:
        """
        Args:
            model_stays: whether the network as it came is kept for its next load.
        """
        executable, network = entry.executable, entry.record.network
        name, version, _ = entry.key
        entry.executable, entry.record = None, replace(entry.record, network=None)
        if executable is None and entry.tenancy.again is not None:
            return  # it was known or evicted, and the model may be that of a loaded network now
        weights = Weights(network, stays=model_stays)
        try:
            if executable is not None:
                self._counters.remove_network(name, executable.place.device, version)
                executable.close()
        finally:
            del executable, network
            weights.give_back(loaded=True)
            self.room.give_back(entry)
        facts = {"network": name, "version": version}
        _log.info("network %s is unloaded", shown(entry), extra=facts)


def shown(entry: NetworkEntry) -> str:
    """A network's name for the log, with its version if the version adds information."""
    name, version, _ = entry.key
    return name if entry.tenancy.owner is None else f"{name} version {version}"
