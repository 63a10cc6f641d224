"""The device: a list of others, over which it splits networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from headrace.plugins.hetero import loading
from headrace.plugins.hetero.config import MERGE_ISLANDS, SCHEMA, TARGET_FALLBACK
from headrace.plugins.hetero.planning.planning import Plan, plan
from headrace.plugins.hetero.running.subgraph import read_frames
from headrace.plugins.hetero.transformations import TRANSFORMATIONS
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import DISABLE_TRANSFORMATIONS
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, Loaded
from headrace.runtime.device.plugin import AS_IT_IS
from headrace.runtime.errors import (
    EndedWorker,
    InvalidArgument,
    UnsupportedLayer,
    UnsupportedLayers,
)
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.transform.transform import transform_network
from headrace.runtime.virtual.members import (
    Target,
    listed,
    read_list,
    targets,
    withheld_keys,
)
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
        """With preprocessing, and with what must not wait for the cut; all else the devices do to
        their parts themselves.

        Preprocessing comes before the cut, so that an input that several parts read is converted
        once, and an output that others read as well is converted for the caller alone.
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
        """Which device runs which layer, in which subgraphs; raises as `plan` does."""
        resolved = self._resolve(config, options, ignore_unknown=True)
        return self._plan(Load(network, options=options), resolved).query_result()

    def load_network(self, load: Load) -> ExecutableNetwork:
        """Splits a network as a query says, and loads its parts; or makes it of the subgraphs that
        were exported, each on its device again. If those do not fit this network or these devices,
        it is split again, and a note says why.

        Raises:
            As `Plugin.load_network`, and where an affinity cannot be followed.
        """
        resolved = self._resolve(load.config, load.options)
        make = self._join if load.native else self._split
        return self._opened(load, resolved.config, partial(make, load, resolved))

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
            options: its members are the list, if it has any.
            fallback: the list otherwise, as TARGET_FALLBACK gives it.

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

    def _plan(self, load: Load, resolved: _Resolved, ended: Mapping[str, str] = _NONE) -> Plan:
        planned = plan(
            self.transform_network(load.network, resolved.config, load.options),
            resolved.targets,
            load.options.affinities,
            merge_islands=resolved.config[MERGE_ISLANDS],
            ended=ended,
            token=load.token,
        )
        return replace(planned, unsupported=_as_given(planned.unsupported, load.network))

    def _join(self, load: Load, resolved: _Resolved) -> Loaded:
        """Loads the subgraphs that were exported, or splits the network again."""
        whole = self.transform_network(load.network, resolved.config, load.options)
        try:
            frames = read_frames(load.native)
            parts = loading.parts_of(whole, frames, resolved.targets)
        except InvalidArgument as error:
            loaded = self._split(load, resolved)
            return replace(loaded, notes=(f"split anew: {error.message}", *loaded.notes))
        try:
            return loading.load(whole, parts, resolved.targets, resolved.config, load.token, frames)
        except EndedWorker as error:
            return self._split(load, resolved, _ended(error))

    def _split(self, load: Load, resolved: _Resolved, ended: Mapping[str, str] = _NONE) -> Loaded:
        """Splits and loads a network. A device whose worker process ends at a part gets nothing of
        this network any more: each further try might end the process again, with all that others
        have there.

        Args:
            ended: such devices, and the reason for each.
        """
        planned = self._plan(load, resolved, ended)
        if planned.unsupported:
            raise UnsupportedLayers(resolved.name, planned.unsupported)
        try:
            loaded = loading.load(
                planned.network, planned.parts, resolved.targets, resolved.config, load.token
            )
        except EndedWorker as error:
            return self._split(load, resolved, {**ended, **_ended(error)})
        notes = (f"nothing runs on {device}: {why}" for device, why in ended.items())
        return replace(loaded, notes=(*notes, *planned.notes, *loaded.notes))


def _ended(error: EndedWorker) -> Mapping[str, str]:
    """The device whose worker process ended at the load of a part, and the reason."""
    return {error.metadata["device"]: error.message}


def _as_given(layers: Sequence[UnsupportedLayer], network: Network) -> tuple[UnsupportedLayer, ...]:
    """The layers with the operators that the network has, for its transformation changes some."""
    operators = {node.name: node.op_type for node in network.nodes()} if layers else {}
    return tuple(each._replace(op_type=operators.get(each.layer, each.op_type)) for each in layers)


def _check_config(target: Target) -> None:
    """Checks the keys of a device as its own load would, because it may get no layer; those of a
    virtual one bear prefixes, and are its own to judge.

    Raises:
        NotFound, InvalidArgument: on a key or its value.
    """
    if not target.options.members:
        target.plugin.schema.refuse_device_keys(target.config, target.name)
        target.plugin.schema.resolve(target.config)
