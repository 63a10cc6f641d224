"""The HETERO device: it splits a network over the devices of a list."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from headrace.plugins.hetero import loading
from headrace.plugins.hetero.config import (
    MEASURED,
    MERGE_ISLANDS,
    PLACEMENT,
    SCHEMA,
    TARGET_FALLBACK,
)
from headrace.plugins.hetero.contest import MeasuredSplit, SplitContest
from headrace.plugins.hetero.executable_network import HeteroNetwork
from headrace.plugins.hetero.planning.cut import Piece, cut
from headrace.plugins.hetero.planning.plan import Answers, Plan, plan
from headrace.plugins.hetero.running.subgraph import read_exports
from headrace.plugins.hetero.transformations import TRANSFORMATIONS
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import DISABLE_TRANSFORMATIONS
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.plugin import AS_IT_IS
from headrace.runtime.errors import (
    EndedWorker,
    HeadraceError,
    InvalidArgument,
    UnsupportedLayer,
    UnsupportedLayers,
)
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions, options_to_json
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.transform.transform import transform_network
from headrace.runtime.transform.warm_up import WarmUp
from headrace.runtime.virtual.entries import from_cache, unread
from headrace.runtime.virtual.members import Target, listed, read_list, targets, withheld_keys
from headrace.runtime.virtual.plugin import VirtualPlugin

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Resolved:
    """What a load or query asks for: HETERO's own configuration, and the devices."""

    config: Configuration
    targets: tuple[Target, ...]

    @property
    def name(self) -> str:
        """The device name with the list, as messages show it."""
        return f"HETERO:{listed(self.targets)}"


class HeteroPlugin(VirtualPlugin):
    """Asks the devices of its list, cuts the network, and has them load the parts."""

    schema = SCHEMA
    full_name = "Splits networks over the devices of a list"
    imports_native = True

    # -- networks --

    def transform_network(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        """Adds preprocessing, and makes the changes that must come before the cut. Each device
        makes all other changes to its own parts.

        Preprocessing comes before the cut. So an input that several parts read is converted only
        once, and an output that other parts also read is converted only for the caller.
        """
        return transform_network(
            network,
            preprocess=(options.inputs, options.outputs),
            common=False,
            device_passes=() if config.get(DISABLE_TRANSFORMATIONS) else TRANSFORMATIONS,
        )

    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        """Says which device runs which layer, in which subgraphs. Raises as `plan` does."""
        resolved = self._resolve(config, options, ignore_unknown=True)
        load = Load(network, options=options)
        whole = self._transformed(load, resolved)
        answers = Answers(whole, resolved.targets, load.token)
        planned = self._plan(load, resolved, answers)
        if not planned.unsupported:
            whole.derived(self._key(load, resolved), lambda: planned)
        return planned.query_result()

    def load_network(self, load: Load) -> ExecutableNetwork:
        """Splits a network as a query does, and loads its parts. An exported network is made of
        its exported subgraphs instead, each on its earlier device. If the subgraphs do not fit
        this network or these devices, the network is split again, and a note says why.

        Raises:
            As `Plugin.load_network`, and if an affinity cannot be followed.
        """
        resolved = self._resolve(load.config, load.options)
        config = resolved.config
        join = partial(self._join, load, resolved)
        make = from_cache(
            self,
            load,
            config,
            resolved.targets,
            restore=join,
            compile_anew=partial(self._split, load, resolved),
            export=HeteroNetwork.split,
            depends_on=_requests(load.warm_up) if config[PLACEMENT] == MEASURED else "",
        )
        if load.native:
            make = partial(join, load.native)
        return self._opened(load, config, make)

    # -- inside --

    def _resolve(
        self, config: Mapping[str, str], options: NetworkOptions, *, ignore_unknown: bool = False
    ) -> _Resolved:
        settings, devices = self.settings(), self.services.devices
        names = self._listed(options, {**settings, **config}.get(TARGET_FALLBACK.name, ""))
        found = targets(names, config, settings, devices, withheld_keys(self.schema))
        decided = {TARGET_FALLBACK.name: listed(found)}
        own = self._own_configuration(config, found, decided, ignore_unknown=ignore_unknown)
        if not ignore_unknown:
            for each in found:
                _check_config(each)
        return _Resolved(own, found)

    def _listed(self, options: NetworkOptions, fallback: str) -> list[DeviceName]:
        """The devices in order of preference.

        Args:
            options: if it has members, they are the list.
            fallback: the list if `options` has no members, as TARGET_FALLBACK gives it.

        Raises:
            InvalidArgument: there is no list, or it holds HETERO.
            NotFound: a device does not exist.
        """
        if not options.members and not fallback:
            raise InvalidArgument(
                "HETERO needs a list of devices: name them in order of preference, as "
                f"HETERO:CPU,TEMPLATE, or set {TARGET_FALLBACK.name} to such a list",
                field="device",
            )
        for member in options.members or read_list("HETERO", fallback, TARGET_FALLBACK):
            if "HETERO" in member.device.types():
                raise InvalidArgument(
                    f"{member.device} in HETERO's list would split the network twice; put its "
                    "devices into the list instead",
                    field="device",
                )
        available = self.services.devices.available()
        members = options.members or read_list("HETERO", fallback, TARGET_FALLBACK, available)
        return [member.device for member in members]

    def _transformed(self, load: Load, resolved: _Resolved) -> Network:
        """The network that is split. A network that is kept is transformed once."""
        config, options = resolved.config, load.options
        return load.network.derived(
            ("transformed", self, config, json.dumps(options_to_json(options), sort_keys=True)),
            lambda: self.transform_network(load.network, config, options),
        )

    def _key(self, load: Load, resolved: _Resolved) -> Hashable:
        """What a plan depends on, besides the network and the state of the devices."""
        affinities = json.dumps(dict(load.options.affinities), sort_keys=True)
        return "plan", self, resolved.config, str(resolved.targets), affinities

    def _plan(self, load: Load, resolved: _Resolved, answers: Answers) -> Plan:
        merge_islands = resolved.config[MERGE_ISLANDS]
        planned = plan(answers, load.options.affinities, merge_islands=merge_islands)
        return replace(planned, unsupported=_as_given(planned.unsupported, load.network))

    def _join(self, load: Load, resolved: _Resolved, native: bytes) -> LoadResult:
        """Loads the subgraphs that were exported, or splits the network again. The network is not
        read, if it comes from the cache: then it is the one that was exported."""

        def again(number: int) -> Piece:
            return loading.pieces_of(whole, bare)[number]

        try:
            told, exports = read_exports(native)
            bare = [replace(each, native=b"") for each in exports]  # `again` stays as the network
            loading.check_devices(exports, resolved.targets)
            if load.native:
                whole = self._transformed(load, resolved)
                pieces = loading.pieces_of(whole, exports)
            else:
                whole = unread(lambda: self._transformed(load, resolved), told)
                pieces = loading.unread_pieces(exports, again)
        except InvalidArgument as error:
            loaded = self._split(load, resolved)
            return replace(loaded, notes=(f"split anew: {error.message}", *loaded.notes))
        try:
            joined = loading.load(
                whole,
                pieces,
                again,
                resolved.targets,
                resolved.config,
                load.token,
                exports,
                load.name,
            )
            assert isinstance(joined.network, HeteroNetwork)
            joined.network.placement = told["placement"]
            return _planned(joined, tuple(told["notes"]), restored=True)
        except EndedWorker as error:
            return self._split(load, resolved, {error.metadata["device"]: error.message})

    def _split(
        self, load: Load, resolved: _Resolved, ended: Mapping[str, str] = _NONE
    ) -> LoadResult:
        """Splits and loads a network. One that is kept is split as an earlier load or query has
        split it, if that works.

        Args:
            ended: the devices whose worker process ended, and the reason for each.
        """
        whole = self._transformed(load, resolved)
        key = self._key(load, resolved)
        before: Plan | None = whole.known(key)
        measures = resolved.config[PLACEMENT] == MEASURED
        if before is not None and not ended and not measures:
            with suppress(HeadraceError):
                return _load(load, before, resolved)
            if load.token.error is not None:
                raise load.token.error
        answers = Answers(whole, resolved.targets, load.token)
        for device, why in ended.items():
            answers.end(device, why)
        with _kept(whole):
            planned, loaded = self._settle(load, resolved, answers)
            if measures:
                planned, loaded = self._fastest(
                    load, resolved, answers, MeasuredSplit(planned, loaded)
                )
        whole.derived(key, lambda: planned)
        notes = (f"nothing runs on {device}: {why}" for device, why in answers.ended.items())
        return replace(loaded, notes=(*notes, *loaded.notes))

    def _settle(self, load: Load, resolved: _Resolved, answers: Answers) -> tuple[Plan, LoadResult]:
        """Plans and loads until no device refuses a layer of its part."""
        while True:
            planned = self._plan(load, resolved, answers)
            if planned.unsupported:
                raise UnsupportedLayers(resolved.name, planned.unsupported)
            try:
                return planned, _load(load, planned, resolved)
            except EndedWorker as error:
                answers.end(error.metadata["device"], error.message)
            except UnsupportedLayers as error:
                part = planned.nodes_of(int(error.metadata["subgraph"]))
                news = answers.refuse(error.metadata["device"], part, error.layers)
                if load.token.error is not None or not news:
                    raise

    def _fastest(
        self, load: Load, resolved: _Resolved, answers: Answers, greedy: MeasuredSplit
    ) -> tuple[Plan, LoadResult]:
        """The fastest of the splits of a network: the greedy one, those that give one device all
        that it runs, and the one that costs least by what layers and copies take. The others are
        closed."""
        device_id = self.device_id(resolved.config)

        def make(devices: Mapping[str, str]) -> MeasuredSplit:
            split = plan(answers, devices, merge_islands=False)
            if split.unsupported:
                raise UnsupportedLayers(resolved.name, split.unsupported)
            return MeasuredSplit(split, _load(load, split, resolved))

        place = self._places.place(device_id, None)
        lend = (
            partial(self.services.lent, load.name, DeviceName.parse(resolved.name), load.network)
            if load.name
            else nullcontext
        )
        contest = SplitContest(greedy, make, place, load.token, lend, load.warm_up)
        with contest:
            if greedy.plan.has_affinities or load.options.affinities:
                contest.note("the splits were not measured: the network has affinities")
            else:
                while answers.ask_next():
                    pass
                contest.run(answers.refusals())
        return contest.chosen()


@contextmanager
def _kept(network: Network) -> Iterator[None]:
    """Keeps what devices make of the network when they are asked, because they need it again for
    their parts, of which many a network has only one."""
    if network.is_kept:
        yield
        return
    network.keep()
    try:
        yield
    finally:
        network.forget()


def _load(load: Load, planned: Plan, resolved: _Resolved) -> LoadResult:
    def again(number: int) -> Piece:
        return cut(planned.network, planned.parts)[number]

    pieces = cut(planned.network, planned.parts)
    loaded = loading.load(
        planned.network,
        pieces,
        again,
        resolved.targets,
        resolved.config,
        load.token,
        name=load.name,
    )
    assert isinstance(loaded.network, HeteroNetwork)
    loaded.network.lasts = not planned.lacks_device
    return _planned(loaded, planned.notes)


def _planned(loaded: LoadResult, notes: tuple[str, ...], *, restored: bool = False) -> LoadResult:
    """The result with the notes of its plan."""
    assert isinstance(loaded.network, HeteroNetwork)
    loaded.network.notes_on_split = notes
    return replace(loaded, notes=(*notes, *loaded.notes), restored=restored)


def _as_given(layers: Sequence[UnsupportedLayer], network: Network) -> tuple[UnsupportedLayer, ...]:
    """The layers with the operators that `network` has. Its transformation changes some of them."""
    operators = {node.name: node.op_type for node in network.nodes()} if layers else {}
    return tuple(
        layer._replace(op_type=operators.get(layer.layer, layer.op_type)) for layer in layers
    )


def _requests(warm_up: WarmUp | None) -> str:
    """The requests that splits are measured with."""
    w = warm_up or WarmUp()
    return str([w.shapes, sorted(w.random), w.raw, w.file, w.stamp])


def _check_config(target: Target) -> None:
    """Checks the keys of a device as its own load would, because the device may get no layer. The
    keys of a virtual device have prefixes, and the virtual device checks them itself.

    Raises:
        NotFound, InvalidArgument: a key or its value is wrong.
    """
    if not target.options.members:
        target.plugin.schema.refuse_device_keys(target.config, target.name)
        target.plugin.schema.resolve(target.config)
