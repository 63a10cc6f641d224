"""The core: devices and networks by name, and all operations on them.

Loads, queries and unloads run on the load executor. Requests go to networks directly, through
`networks.acquire` and `networks.submit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path

from headrace.runtime.cache.cache import NetworkCache
from headrace.runtime.cache.models import KnownModels
from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.config import replicas
from headrace.runtime.config.device_name import DeviceName, resolve
from headrace.runtime.config.prefixes import checked_for, own_config
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import PluginSource
from headrace.runtime.device.services import Keep, Readers, Services, no_budget
from headrace.runtime.device.state import DeviceState, DeviceStates
from headrace.runtime.errors import AlreadyExists, Cancelled, HeadraceError, NotFound
from headrace.runtime.execution.executor_manager import ExecutorManager
from headrace.runtime.execution.timer import Timer
from headrace.runtime.execution.trace import Span
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading import auto_batching, idle
from headrace.runtime.loading import blob as blobs
from headrace.runtime.loading.batch_size import with_batch
from headrace.runtime.loading.entry import COLD, USUAL, NetworkState, Residence, Tenancy, plain_name
from headrace.runtime.loading.exchange import blob_options, check_ports, export_blob, why_not_native
from headrace.runtime.loading.executor import LoadExecutor
from headrace.runtime.loading.life import NetworkLife
from headrace.runtime.loading.memory_budget import NO_BUDGET, MemoryBudget, WeightSize
from headrace.runtime.loading.plugin_registry import PluginRegistry
from headrace.runtime.loading.recent import RecentNetworks
from headrace.runtime.loading.registry import NetworkEntry, NetworkRegistry
from headrace.runtime.loading.shadows.device_copy import DeviceCopy
from headrace.runtime.loading.shadows.shadow import Shadow, check_network, check_shadow
from headrace.runtime.loading.shadows.shadows import Shadows
from headrace.runtime.loading.store import NetworkStore
from headrace.runtime.loading.table import NO_LIMITS, OwnerLimits
from headrace.runtime.loading.versions import NO_SHARES, check_shares
from headrace.runtime.metrics.counters import Counters
from headrace.runtime.metrics.families import DEVICE_OUTAGES, EVICTIONS, MEMORY_BUDGET_BYTES
from headrace.runtime.metrics.series import SeriesSnapshot, Snapshot
from headrace.runtime.network.extension import read_functions
from headrace.runtime.network.graph import graph_of
from headrace.runtime.network.memory import use
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import DEVICE as PIPELINE
from headrace.runtime.responses.memory import ResponseMemory
from headrace.runtime.responses.network import load_with_responses
from headrace.runtime.sequences.memory import StateMemory
from headrace.runtime.sequences.network import load_with_states
from headrace.runtime.system.asker import Asker, current_asker
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.system.graph_memory import free_graphs
from headrace.runtime.transform.options import LoadRequest, NetworkOptions
from headrace.runtime.transform.query import QueryResult


class Core:
    """One server's devices and networks. Thread-safe.

    Args:
        sources: the plugins to start.
        blob_key: the secret key that signs exported native bytes.
        max_networks, of_owner: the most networks at once, and the limits of each owner.
        limits: bounds on models from outside.
        store, cache: keep changes and compiled networks over a restart. None keeps nothing.
        weights, folder, readers, max_load_seconds: as `Services`.
        max_state_bytes: the most bytes that the states of all open sequences may take.
        max_response_cache_bytes: the most bytes that the kept replies of all networks may take.
        budget: the memory that networks may take.
        clients_networks_leave: whether networks that clients have loaded make room for others.
        load_span: begins the span of a load, on the thread that asks for it. It is told whether the
            load replaces a network. None if the load is not traced.
        asker: says who asks, on the thread that asks for a load or a query.

    Raises:
        NotFound, InvalidArgument: as `PluginRegistry.start`.
    """

    def __init__(
        self,
        sources: Iterable[PluginSource],
        *,
        blob_key: bytes,
        max_networks: int = 256,
        of_owner: OwnerLimits = NO_LIMITS,
        limits: Limits | None = None,
        store: NetworkStore | None = None,
        cache: NetworkCache | None = None,
        weights: WeightFiles | None = None,
        folder: Path | None = None,
        readers: Readers | None = None,
        isolate_devices: bool = False,
        max_state_bytes: int = 2**30,
        max_response_cache_bytes: int = 2**28,
        max_load_seconds: float = math.inf,
        budget: MemoryBudget = NO_BUDGET,
        clients_networks_leave: bool = False,
        load_span: Callable[[LoadRequest, bool], Span | None] = lambda _, __: None,
        asker: Callable[[], Asker] = current_asker,
    ) -> None:
        self.limits = limits or Limits()
        self.models = KnownModels(cache, self.limits)
        self.counters = Counters(cache.counters if cache is not None else None)
        self.states = DeviceStates()
        self.plugins = PluginRegistry()
        self.networks = NetworkRegistry(max_networks, of_owner)
        self.store = store
        self._load_span = load_span
        self._blob_key = blob_key
        self._state_memory = StateMemory(max_state_bytes)
        self._responses = ResponseMemory(max_response_cache_bytes)
        self._with_responses = partial(load_with_responses, self._responses)
        self._timer = Timer()
        self._executors = ExecutorManager()
        self.asker = asker
        self._loads = LoadExecutor(asker=asker)
        self.life = NetworkLife(
            self.networks, self.counters, self._loads, store, budget, self.models.note
        )
        self.budget = budget
        self.clients_networks_leave = clients_networks_leave and bool(budget)
        self.networks.cold.asked = self.counters.count_cold
        copy = partial(DeviceCopy, self.load_network, self.life.unload)
        self.shadows = Shadows(self.networks, copy, self.counters.requests, asker)
        self.idle = idle.IdleNetworks(self._timer, self.networks, self._unload_idle)
        self.recent = RecentNetworks(self._timer, lambda: self._loads.close(free_graphs))
        services = Services(
            self._executors,
            self._timer,
            self.counters,
            self.states,
            self.plugins,
            cache,
            weights,
            folder,
            readers,
            max_load_seconds=max_load_seconds,
            loads=self._loads,
            networks=self.networks,
            lent=self._lent if budget else no_budget,
            with_responses=self._with_responses,
        )
        try:
            self.plugins.start(sources, services, isolate=isolate_devices)
        except HeadraceError:
            self.stop()
            raise
        for plugin in self.plugins.plugins().values():
            plugin.announce()

    # -- networks --

    def load_network(
        self,
        request: LoadRequest,
        network: Callable[[], Network],
        *,
        replace: bool = False,
        on_disk: bool = False,
        owner: object = None,
        residence: Residence | None = None,
        asker: Asker | None = None,
    ) -> Future[NetworkEntry]:
        """Loads the network that `network` returns. A loading thread calls `network`; `on_disk`
        is as in `NetworkLife.load`.

        Args:
            owner: as `Tenancy`.
            residence: how it stays in memory; None for a client's network, which `network` cannot
                read again later.
            asker: who has asked for it; None for whoever calls this.

        Raises:
            AlreadyExists, ResourceExhausted, InvalidArgument: the name cannot be taken.
            The future raises what `Plugin.load_network` and `network` raise.
        """
        device = self._resolve(request.device)
        tenancy = self._tenancy(network, device, owner, residence, asker)
        idle_seconds = self._idle_seconds(request, tenancy)
        load = self._begin_load(request, network, device, tenancy, replace=replace, on_disk=on_disk)
        self.idle.watch(request, idle_seconds)
        return load

    def know_network(
        self,
        request: LoadRequest,
        network: Callable[[], Network],
        *,
        owner: object,
        residence: Residence,
    ) -> NetworkEntry:
        """Lists a network on the disk that its first request loads. Arguments and errors are those
        of `load_network`."""
        tenancy = self._tenancy(network, self._resolve(request.device), owner, residence)
        idle_seconds = self._idle_seconds(request, tenancy)
        known = self.life.know(request, tenancy)
        self.idle.watch(request, idle_seconds)
        return known

    def is_budgeted(self, device: DeviceName) -> bool:
        """Whether networks on a device count for a memory budget. Raises as `plugin`."""
        return bool(self.budget) and bool(self._budgets(self._resolve(device)))

    def import_network(
        self, name: str, device: str, config: Mapping[str, str], data: Buffer, *, replace: bool
    ) -> Future[NetworkEntry]:
        """Loads an exported blob. If `device` is empty, it loads it onto the blob's own device.

        It does not use native bytes that do not verify or that belong to another device. In that
        case it compiles the network again, and the network's notes say so. Raises as
        `load_network`.
        """
        blob = blobs.read(data, self._blob_key, self.limits.model_bytes)
        to = DeviceName.parse(device or blob.device, field="device" if device else "blob")
        kept = {key: text for key, text in blob.config.items() if key != "DEVICE_ID" or not to.id}
        request = LoadRequest(name, to, {**kept, **config}, blob_options(blob), "import")
        resolved = self._resolve(request.device)

        def compile_network(entry: NetworkEntry) -> ExecutableNetwork:
            notes = why_not_native(blob, self.plugins.plugin(resolved.type), request.device)
            native = b"" if notes else blob.native or b""
            executable = self._load(entry, request, resolved, native, notes)
            check_ports(blob, executable)
            return executable

        def read() -> Network:
            return self.models.from_bytes(blob.network[0])

        tenancy = self._tenancy(read, resolved)
        idle_seconds = self._idle_seconds(request, tenancy)
        span = self._load_span(request, replace)
        load = self.life.load(
            request,
            read,
            compile_network,
            replace=replace,
            tenancy=tenancy,
            span=span,
            budgets=self._budgets(resolved),
        )
        self.idle.watch(request, idle_seconds)
        return load

    def cancel_load(self, load: Future[NetworkEntry]) -> None:
        """Cancels a load whose caller no longer waits."""
        self.life.cancel(load, Cancelled("the caller cancelled the load"))

    def unload_network(
        self,
        name: str,
        version: str = "",
        *,
        stays: Callable[[NetworkEntry], bool] = lambda _: False,
    ) -> Future[None]:
        """Removes versions of a network. The future is done when their memory is free. The last one
        takes the network's shadow with it. Arguments and errors are those of
        `NetworkLife.unload`."""
        unloaded = self.life.unload(name, version, stays=stays)
        if not self.networks.has(name):
            self.shadows.forget(name)
        return unloaded

    def set_traffic(
        self, name: str, shares: Mapping[str, int], default: Mapping[str, int] = NO_SHARES
    ) -> None:
        """Sets how versions share a network's requests, in per cent. A restart keeps the shares.

        Args:
            shares: version to per cent. An empty mapping goes back to `default`.
            default: the shares that apply without `shares`. If it is empty too, the highest version
                serves.

        Raises:
            InvalidArgument: the shares are not per cent, or more than the whole.
            As `NetworkRegistry.share`.
        """
        self.life.share(name, check_shares(shares), default)

    def set_shadow(self, name: str, shadow: Shadow) -> Future[NetworkEntry] | None:
        """Gives a network a shadow, or ends the one that it has. A restart keeps it.

        Returns:
            The load on the shadow's device, if one has begun. If it fails, the shadow ends.

        Raises:
            InvalidArgument: as `check_shadow`.
            NotFound: there is no such network, version or device.
            FailedPrecondition: as `check_network`.
            As `load_network`.
        """
        shadow = check_shadow(shadow)
        entry = self.networks.find(name, shadow.version)
        if shadow.percent:
            check_network(entry, shadow)
        if shadow.device:
            self.plugin(DeviceName.parse(shadow.device))  # before the shadow that runs ends
        save = partial(self.life.save_shadow, name, self.shadows.get)
        later = partial(self._loads.close, partial(copy_context().run, save))
        try:
            load = self.shadows.set(name, shadow, failed=later)
        finally:
            save()
        return load

    def query_network(
        self,
        device: DeviceName,
        config: Mapping[str, str],
        options: NetworkOptions,
        network: Callable[[], Network],
        *,
        graph: bool = False,
    ) -> Future[QueryResult]:
        """Returns which layers the device would run, and the network's graph if `graph` is True.
        Raises as `Plugin.query_network`, and as `graph_of` if `graph` is True."""
        members, plugin = self._resolve(device).members, self.plugins.plugin(device.type)

        def query(queried: Network) -> QueryResult:
            wanted = replace(options, members=members)
            answer = plugin.query_network(queried, own_config(config, device), wanted)
            drawn = graph_of(answer.typed or queried, answer.supported_layers) if graph else None
            return replace(answer, graph=drawn, typed=None, notes=(*queried.notes, *answer.notes))

        return self._loads.submit(lambda: use(network, query))

    def cancel_query(self, query: Future[QueryResult]) -> None:
        """Cancels a query whose caller no longer waits."""
        self._loads.give_up(query, Cancelled("the caller cancelled the query"))

    def export_network(self, name: str, version: str = "") -> Iterator[bytes]:
        """The blob of a loaded network in pieces of at most 1 MiB.

        Raises:
            As `NetworkRegistry.acquire`.
        """
        entry = self.networks.acquire(name, version)
        try:
            plugin = self.plugin(entry.record.request.device)
            blob = export_blob(entry, plugin)
            entry.record.given.free_memory()
        finally:
            self.networks.release(entry)
        return blobs.write(blob, self._blob_key)

    # -- devices --

    def plugin(self, device: DeviceName) -> Plugin:
        """The plugin of the device with this name.

        Raises:
            NotFound, Unavailable: there is no such device, or it did not start.
        """
        return self.plugins.plugin(self._resolve(device).type)

    def devices_up(self) -> dict[str, bool]:
        """Whether each device of `PluginRegistry.in_metrics` works."""
        events = self.states.current()

        def up(name: str) -> bool:
            return name not in events or events[name].state is DeviceState.UP

        return {name: up(device) and up(name) for name, device in self.plugins.in_metrics()}

    def device_outages(self) -> Snapshot:
        """How often each device of `devices_up` went down."""
        outages = self.states.outages()
        return tuple(
            SeriesSnapshot(DEVICE_OUTAGES, (name,), sum(outages[each] for each in {name, device}))
            for name, device in self.plugins.in_metrics()
        )

    def budget_series(self) -> Snapshot:
        """The memory budgets, and how many networks have left for others."""
        evictions = self.life.room.evictions
        return (
            *(
                SeriesSnapshot(MEMORY_BUDGET_BYTES, (name or "all",), most)
                for name, most in self.budget.bytes.items()
            ),
            *(
                SeriesSnapshot(EVICTIONS, (name or "all",), count)
                for name, count in evictions.items()
            ),
        )

    def set_config(self, device: DeviceName, changes: Mapping[str, str]) -> None:
        """Configures a device for the networks loaded from now on."""
        plugin = self.plugin(device)
        plugin.set_config(own_config(changes, device))
        if self.store is not None:
            self.store.save_config(plugin.name, plugin.settings())

    def add_extension(self, device: DeviceName, functions: bytes) -> list[str]:
        """Gives a device the local functions of a ModelProto; returns them as "domain::name"."""
        plugin = self.plugin(device)
        extension = read_functions(functions, self.limits)
        plugin.add_extension(extension)
        if self.store is not None:
            self.store.save_extension(plugin.name, functions)
        return [f"{function.domain}::{function.name}" for function in extension]

    # -- end --

    def stop(self, deadline: float = math.inf) -> None:
        """Cancels loads, unloads every network once its requests have ended, and ends all threads.

        Args:
            deadline: a time of the monotonic clock. The processes of isolated devices that have not
                finished by then are killed.
        """
        late = self._timer.schedule(deadline, self.plugins.kill)
        self.shadows.stop()
        self.idle.close()
        self.networks.cold.stop()
        self.life.stop()
        self.recent.close()
        self._loads.stop()
        self._responses.stop()
        self._executors.stop()
        self.plugins.close()
        self._timer.cancel(late)
        self._timer.stop()

    # -- inside --

    def _begin_load(
        self,
        request: LoadRequest,
        network: Callable[[], Network],
        device: DeviceName,
        tenancy: Tenancy,
        *,
        replace: bool,
        on_disk: bool,
        cold: bool = False,
    ) -> Future[NetworkEntry]:
        """As `load_network`.

        Args:
            device: the request's device, resolved.
            cold: as `NetworkLife.load`.
        """
        span = self._load_span(request, replace)
        return self.life.load(
            request,
            network,
            lambda entry: self._load(entry, request, device),
            replace=replace,
            on_disk=on_disk,
            tenancy=tenancy,
            span=span,
            budgets=self._budgets(device),
            cold=cold,
        )

    def _tenancy(
        self,
        network: Callable[[], Network] | None,
        device: DeviceName,
        owner: object = None,
        residence: Residence | None = None,
        asker: Asker | None = None,
    ) -> Tenancy:
        """Arguments are as in `load_network`."""
        if residence is None and self.clients_networks_leave:
            network, residence = None, Residence(of_client=True)
        again = partial(self._load_again, network, device) if residence is not None else None
        return Tenancy(owner, asker or self.asker(), residence or USUAL, again)

    def _load_again(
        self,
        network: Callable[[], Network] | None,
        device: DeviceName,
        cold: NetworkEntry,
        who: str,
    ) -> Future[NetworkEntry]:
        """Loads a network that is known or evicted, if nobody loads it already. A client's network
        is loaded for that client, whoever wants it: a stranger's model stays one.

        Args:
            network: reads it if its model is not in the server; None if it always is.
            who: the identity that wants it.
        """
        request: LoadRequest = cold.record.request
        tenancy = cold.tenancy
        if not tenancy.residence.of_client:
            tenancy = replace(tenancy, asker=tenancy.asker._replace(name=who))

        def read() -> Network:
            kept: Network | None = cold.record.network
            if kept is not None:
                return kept
            if network is None:
                raise Cancelled(f"network {plain_name(request.name)!r} was unloaded meanwhile")
            return network()

        try:
            return self._begin_load(
                request, read, device, tenancy, replace=True, on_disk=True, cold=True
            )
        except AlreadyExists:
            under_way = self.life.under_way(request.name, request.version)
            if under_way is not None:
                return under_way
            entry = self.networks.find(request.name, request.version)
            if entry.state in COLD and entry.tenancy.again is not None:
                return entry.tenancy.again(entry, who)  # it has taken the place of the other one
            if entry.state is not NetworkState.READY:
                raise
            there: Future[NetworkEntry] = Future()  # its load has ended meanwhile
            there.set_result(entry)
            return there

    def _idle_seconds(self, request: LoadRequest, tenancy: Tenancy) -> float:
        return 0.0 if self._why_it_stays(tenancy) else idle.idle_seconds(request.config)

    def _why_it_stays(self, tenancy: Tenancy) -> str:
        """Why a network stays that nobody uses; empty if it may be unloaded."""
        if tenancy.again is not None and not tenancy.residence.of_client:
            return "the network is of the model repository"
        shared = self.store is not None and self.store.shared
        return "this server is a replica of a cluster" if shared else ""

    def _unload_idle(self, request: LoadRequest) -> None:
        def unload() -> None:
            with suppress(NotFound):  # somebody was faster
                self.unload_network(
                    request.name,
                    request.version,
                    stays=lambda entry: not idle.is_of(entry, request),
                )
                self.idle.unloaded(request.name)

        self._loads.close(unload)

    def _lent(
        self, name: str, device: DeviceName, network: Network
    ) -> AbstractContextManager[Keep]:
        weights = WeightSize(network.weight_bytes, network.widened_bytes)
        return self.life.room.lent(name, self._budgets(device), weights)

    def _budgets(self, device: DeviceName) -> frozenset[str]:
        """The memory budgets that a network on a device counts for. A pipeline leaves with the
        networks of its steps, whatever their devices."""
        if device.type == PIPELINE:
            return frozenset(self.budget.bytes)
        return self.budget.counts(each.type for each in device.physical())

    def _resolve(self, device: DeviceName) -> DeviceName:
        """The device name with its list of members resolved.

        Raises:
            NotFound, Unavailable: as `plugin`.
        """
        self.plugins.plugin(device.type)
        return resolve(device, self.plugins.available())

    def _load(
        self,
        entry: NetworkEntry,
        request: LoadRequest,
        device: DeviceName,
        native: bytes = b"",
        notes: tuple[str, ...] = (),
    ) -> ExecutableNetwork:
        """Loads an entry's network. The network keeps states if the configuration names any, and
        replies if it says so. Its requests run in batches if the load wants that and it pays.

        Args:
            device: the request's device, resolved.
            native, notes: as `Load`.
        """
        options = replace(request.options, members=device.members)
        said, told = replicas.split(request.config, alone=not (self.store and self.store.shared))
        said, also_told = idle.split(said, stays=self._why_it_stays(entry.tenancy))

        def load(config: Mapping[str, str]) -> ExecutableNetwork:
            own = checked_for(config, request.device)
            given: Network = entry.record.given
            beside = (*given.notes, *notes, *told, *also_told)
            load = Load(
                with_batch(given, request),
                own,
                options,
                native,
                entry.token,
                beside,
                entry.key.name,
                next(iter(request.warm_ups), None),
            )
            return auto_batching.load(device, load, self.plugins)

        presented, memory = (*options.inputs, *options.outputs), self._state_memory
        return self._with_responses(
            said, lambda config: load_with_states(config, presented, memory, load)
        )
