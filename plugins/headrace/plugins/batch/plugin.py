"""The device BATCH: another device, and the number of rows that run on it together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from headrace.plugins.batch import hinted, loading
from headrace.plugins.batch.claims.mixing import CannotBatch
from headrace.plugins.batch.config import DEFAULT_SIZE, NOT_FOR_MEMBERS, SCHEMA
from headrace.plugins.batch.executable_network import BatchNetwork
from headrace.runtime.config.device_name import DeviceName, Member
from headrace.runtime.config.schema import Configuration
from headrace.runtime.config.standard_keys import DEVICE_ID, PERFORMANCE_HINT_NUM_REQUESTS
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.plugin import AS_IT_IS
from headrace.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    InvalidModel,
    UnsupportedLayer,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.transform.transform import transform_network
from headrace.runtime.virtual.entries import from_cache
from headrace.runtime.virtual.members import Target, targets
from headrace.runtime.virtual.plugin import VirtualPlugin

_CHOOSING = ("BATCH", "MULTI", "AUTO")


@dataclass(frozen=True, slots=True)
class _Resolved:
    """What a load or query asks for."""

    config: Configuration
    target: Target
    size: int


class BatchPlugin(VirtualPlugin):
    """Loads the network on the other device, and joins requests for it."""

    schema = SCHEMA
    full_name = "Runs requests together on another device"

    # -- networks --

    def transform_network(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        """Adds preprocessing only. The other device transforms the result itself."""
        return transform_network(
            network, preprocess=(options.inputs, options.outputs), common=False
        )

    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        """The other device's answer without the layers that mix rows of a batch. The network is
        loaded for the trial and then closed, if the memory budget has room for it."""
        resolved = self._resolve(config, options, ignore_unknown=True)
        members = replace(options, members=resolved.target.options.members)
        answer = resolved.target.plugin.query_network(network, resolved.target.config, members)
        if answer.unsupported:
            return answer
        whole = self.transform_network(network, resolved.config, options)
        try:
            with self.services.lent("", resolved.target.device, network):
                self._batched(Load(network, options=options), resolved).network.close()
        except CannotBatch as error:
            return _without_batches(answer, network, whole, error)
        except (FailedPrecondition, InvalidModel) as error:
            return _without_batches(answer, network, whole, CannotBatch(error.message))
        return answer

    def load_network(self, load: Load) -> ExecutableNetwork:
        """Loads a network so that its requests run together. The plugin exports nothing native,
        because it can quickly make the batched network again.

        Raises:
            As `Plugin.load_network`.
            FailedPrecondition: its requests cannot run together. The message says why.
        """
        resolved = self._resolve(load.config, load.options)
        return self._opened(load, resolved.config, partial(self._batched, load, resolved))

    def join_if_it_pays(self, device: DeviceName, load: Load) -> ExecutableNetwork:
        """See `AutoBatching`."""
        own = {key: text for key, text in load.config.items() if key != DEVICE_ID.name}
        options = replace(load.options, members=(Member(device),))
        resolved = self._resolve(own, options)
        plugin = self.services.devices.plugin(device.type)

        def batched(plain: ExecutableNetwork, token: CancelToken) -> BatchNetwork:
            inner = replace(load, options=options, token=token)
            made = self._opened(
                inner, resolved.config, partial(self._batched, inner, resolved, plain)
            )
            assert isinstance(made, BatchNetwork)
            return made

        plain = partial(plugin.load_network, load)
        return hinted.choose(plain, batched, resolved.size, load.token, self.services.timer)

    # -- inside --

    def _resolve(
        self, config: Mapping[str, str], options: NetworkOptions, *, ignore_unknown: bool = False
    ) -> _Resolved:
        if not options.members:
            raise InvalidArgument(
                "BATCH needs the name of a device, and takes the number of rows that run together, "
                "as BATCH:CPU(8)",
                field="device",
            )
        (member,) = options.members
        _refuse_nonsense(member.device, member.count)
        settings = self.settings()
        found = targets([member.device], config, settings, self.services.devices, NOT_FOR_MEMBERS)
        own = self._own_configuration(config, found, ignore_unknown=ignore_unknown)
        size = member.count or min(DEFAULT_SIZE, own[PERFORMANCE_HINT_NUM_REQUESTS] or DEFAULT_SIZE)
        (target,) = found
        return _Resolved(own, target, max(2, size))

    def _batched(
        self, load: Load, resolved: _Resolved, plain: ExecutableNetwork | None = None
    ) -> LoadResult:
        config, target, size = resolved.config, resolved.target, resolved.size
        read = partial(self.transform_network, load.network, config, load.options)
        batch_load = loading.BatchLoad(read, config, target, size, load.token, plain)
        make = from_cache(
            self,
            load,
            config,
            [target],
            restore=batch_load.restored,
            compile_anew=batch_load.anew,
            export=BatchNetwork.entry,
            depends_on=[size, plain is not None],
        )
        made = make()
        assert isinstance(made.network, BatchNetwork)
        if made.network.apart:
            raise FailedPrecondition(made.network.apart, field="device")
        return made


def _without_batches(
    found: QueryResult, network: Network, whole: Network, error: CannotBatch
) -> QueryResult:
    """The answer `found` without the layers of `network` that prevent batches. If the error names
    none of its layers, no layer is supported."""
    origins = {layer.name: layer.origins for layer in whole.layers}
    at_fault = {origin for name in error.layers for origin in origins.get(name, ())}
    layers = [layer for layer in network.layers if layer.name in at_fault] or network.layers
    unsupported = [
        UnsupportedLayer(layer.name, layer.op_type, error.message, "BATCH") for layer in layers
    ]
    lacking = {layer.name for layer in layers}
    supported = {
        name: device for name, device in found.supported_layers.items() if name not in lacking
    }
    return QueryResult(supported, unsupported)


def _refuse_nonsense(device: DeviceName, count: int | None) -> None:
    """
    Raises:
        InvalidArgument: batches on this device, or of this size, make no sense.
    """
    wrong = next((kind for kind in device.types() if kind in _CHOOSING), None)
    if wrong == "BATCH":
        raise InvalidArgument(
            f"BATCH:[{device}] would batch requests twice; use BATCH once", field="device"
        )
    if wrong is not None:
        raise InvalidArgument(
            f"BATCH:[{device}] would send whole batches to different devices; put BATCH into the "
            f"list of {wrong}, as {wrong}:[BATCH:CPU(8)]",
            field="device",
        )
    if count == 1:
        raise InvalidArgument(
            f"BATCH:{device}(1) joins no requests; load onto {device}, or give a size of 2 or more",
            field="device",
        )
