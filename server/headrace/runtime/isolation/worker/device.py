"""A device inside its worker: the plugin, its networks, and the calls that the server makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.runtime.cache.weights import WeightFiles
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.plugin_source import (
    create_plugin,
    factory_source,
)
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceEvent, DeviceStates
from headrace.runtime.errors import NotFound, Unavailable
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.timer import Timer
from headrace.runtime.intake.limits import Limits
from headrace.runtime.isolation.wire.descriptions import (
    of_network,
    parameter_to_json,
    query_to_json,
    schema_to_json,
)
from headrace.runtime.isolation.wire.telemetry import counts_to_json
from headrace.runtime.isolation.worker.inline_executor import InlineExecutors
from headrace.runtime.metrics.counters import Counters, NetworkCounters
from headrace.runtime.network.extension import read_functions
from headrace.runtime.network.memory import Weights, forget_locals, use
from headrace.runtime.network.network import Network, layer_to_json, port_to_json
from headrace.runtime.system.allocator import release_memory
from headrace.runtime.system.graph_memory import free_graphs
from headrace.runtime.system.load_stages import LoadStages
from headrace.runtime.transform.options import options_from_json


class WorkerCall(NamedTuple):
    """A call from the server: its arguments, and the files that came with it.

    Attributes:
        unread: the network that it is about, which need not be read; None if that is a file.
    """

    arguments: Mapping[str, Any]
    files: Sequence[memoryview]
    token: CancelToken
    unread: Network | None = None


class WorkerDevice:
    """Thread-safe, as far as the plugin is; single operations on `_networks`, `_counters`
    and `_weights` are atomic.

    Args:
        name, path, config: the plugin's, as in the server's configuration.
        heard: called with the device states that the plugin reports.
        folder, weights, isolated: as `Services`.

    Raises:
        Any error that the plugin's creation raises.
    """

    def __init__(
        self,
        name: str,
        path: str,
        config: Mapping[str, str],
        heard: Callable[[DeviceEvent], None],
        folder: Path | None = None,
        weights: WeightFiles | None = None,
        *,
        isolated: bool = True,
    ) -> None:
        self._timer = Timer()
        devices = _OwnDevice()
        states = DeviceStates()
        services = Services(
            InlineExecutors(),
            self._timer,
            Counters(),
            states,
            devices,
            folder=folder,
            weights=weights,
            isolated=isolated,
        )
        try:
            source = factory_source(name, path).configured(name, config)
            self._plugin: Plugin = create_plugin(source, services)
            devices.add(self._plugin)
        except BaseException:
            self._timer.stop()
            raise
        states.subscribe(heard)
        self._networks: dict[int, ExecutableNetwork] = {}
        self._counters: dict[int, NetworkCounters] = {}
        self._weights: dict[int, Weights] = {}

    def network(self, number: int) -> ExecutableNetwork:
        """The network with that number.

        Raises:
            Unavailable: the network has been unloaded.
        """
        network = self._networks.get(number)
        if network is None:
            raise Unavailable("the network has been unloaded")
        return network

    def close(self) -> None:
        """Unloads every network and ends the plugin."""
        for number in list(self._networks):
            self._networks.pop(number).close()
        self._plugin.close()
        self._timer.stop()

    # -- calls; each returns a value for JSON --

    def describe(self, _: WorkerCall) -> Any:
        plugin = self._plugin
        return {
            "schema": schema_to_json(plugin.schema),
            "full_name": plugin.full_name,
            "architecture": plugin.architecture,
            "backend_version": plugin.backend_version,
            "capabilities": list(plugin.capabilities),
            "imports_native": plugin.imports_native,
            "native_version": plugin.native_version,
            "metrics": list(plugin.metrics()),
            **self._changing(),
        }

    def set_config(self, call: WorkerCall) -> Any:
        self._plugin.set_config(call.arguments["changes"])
        return self._changing()

    def metric(self, call: WorkerCall) -> Any:
        return parameter_to_json(
            self._plugin.get_metric(call.arguments["name"], call.arguments["options"])
        )

    def extend(self, call: WorkerCall) -> Any:
        self._plugin.add_extension(read_functions(bytes(call.files[0])))

    def query(self, call: WorkerCall) -> Any:
        options = options_from_json(call.arguments["options"])

        def ask(network: Network) -> Any:
            return query_to_json(
                self._plugin.query_network(network, call.arguments["config"], options)
            )

        return use(lambda: _network(call.files[0]), ask)

    def load(self, call: WorkerCall) -> Any:
        network = call.unread or _network(call.files[0], spooled=True)
        weights = Weights(network)
        try:
            facts = self._load(network, call, weights)
        except BaseException as error:
            forget_locals(error)
            del network
            weights.give_back()
            raise
        network.free_memory()
        del network
        free_graphs(wait=False)  # copies that were only needed to compile
        return facts

    def _load(self, network: Network, call: WorkerCall, weights: Weights) -> Any:
        given = call.files if call.unread is not None else call.files[1:]
        native = b"".join(given)
        options = options_from_json(call.arguments["options"])
        load = Load(network, call.arguments["config"], options, native, call.token)
        stages = LoadStages()
        with stages.within():
            loaded = self._plugin.load_network(load)
        number = call.arguments["number"]
        counters = NetworkCounters("", self._plugin.name)  # the server knows the network's name
        try:
            loaded.count_as("", counters)
            facts = {**_facts(loaded), "stages": stages.seconds}
        except BaseException:
            loaded.close()  # the server does not hear of it
            raise
        self._counters[number] = counters
        self._weights[number] = weights
        self._networks[number] = loaded
        return facts

    def unload(self, call: WorkerCall) -> Any:
        number = call.arguments["number"]
        network = self._networks.pop(number, None)
        self._counters.pop(number, None)
        if network is not None:
            network.close()
            del network
            self._weights.pop(number).give_back()
            release_memory()

    def layers(self, call: WorkerCall) -> Any:
        return [layer_to_json(layer) for layer in self.network(call.arguments["number"]).layers()]

    def network_metric(self, call: WorkerCall) -> Any:
        network = self.network(call.arguments["number"])
        return parameter_to_json(network.get_metric(call.arguments["name"]))

    def network_config(self, call: WorkerCall) -> Any:
        self.network(call.arguments["number"]).set_config(call.arguments["changes"])

    def telemetry(self, _: WorkerCall) -> Any:
        plugin = self._plugin
        return counts_to_json(
            {device_id: plugin.memory_bytes(device_id) for device_id in plugin.device_ids()},
            {number: counters.series.snapshot() for number, counters in [*self._counters.items()]},
            {number: network.shapes() for number, network in [*self._networks.items()]},
        )

    def export(self, call: WorkerCall) -> bytes:
        """Exports a network. This is the only call that returns bytes."""
        return self.network(call.arguments["number"]).export()

    # -- inside --

    def _changing(self) -> dict[str, Any]:
        plugin = self._plugin
        return {"device_ids": plugin.device_ids(), "default_streams": plugin.default_streams()}


class _OwnDevice:
    """The device that the worker's device may use: itself. Other devices are in the server."""

    _own: Plugin | None = None

    def add(self, plugin: Plugin) -> None:
        """Adds the worker's own device."""
        self._own = plugin

    def plugin(self, device: str) -> Plugin:
        if self._own is not None and device == self._own.name:
            return self._own
        raise NotFound(
            f"a device in a process of its own cannot use {device}; set ISOLATION for the "
            f"devices that the virtual device uses, not for the virtual device"
        )

    def available(self) -> dict[str, list[str]]:
        return {}

    def reasons(self) -> dict[str, str]:
        return {}

    def not_installed(self) -> frozenset[str]:
        return frozenset()


def _facts(network: ExecutableNetwork) -> dict[str, Any]:
    return {
        "inputs": [port_to_json(port) for port in network.inputs],
        "outputs": [port_to_json(port) for port in network.outputs],
        "defaults": [port_to_json(port) for port in network.defaults],
        "notes": list(network.notes),
        "restored": network.restored,
        "maps_weights": network.maps_weights,
        "metrics": list(network.metrics()),
        "config": of_network(network.config),
    }


def _network(data: memoryview, *, spooled: bool = False) -> Network:
    """The network of a file that the server has sent, and whose limits it has checked. The weights
    are views of the file. Of a network that stays, they move to a file on disk, because the sent
    one takes memory as long as it is mapped."""
    return Network.from_bytes(data, Limits(model_bytes=len(data)), spooled=spooled)
