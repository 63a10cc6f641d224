"""The device OPENVINO as clients see it: its queue and streams, which layers it claims, and the
networks whose shapes run on OpenVINO or on CPU. It lives in the server and never imports OpenVINO:
`compiling` compiles for it, usually in a process of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, cast
from weakref import WeakSet

import onnx_ir as ir

from headrace.plugins.openvino import config as settings
from headrace.plugins.openvino.claims.unclaimed import unclaimed_layers
from headrace.plugins.openvino.device import OpenVinoDevice
from headrace.plugins.openvino.executable_network import OpenVinoNetwork
from headrace.plugins.openvino.running.held_network import HeldNetwork
from headrace.runtime.config import hints
from headrace.runtime.config.device_name import DeviceName, Member
from headrace.runtime.config.schema import Configuration, ParameterValue
from headrace.runtime.config.standard_keys import (
    DEVICE_ID,
    DISABLE_TRANSFORMATIONS,
    INFERENCE_NUM_THREADS,
    INFERENCE_PRECISION_HINT,
    NUM_STREAMS,
)
from headrace.runtime.device.cached_load import Compile
from headrace.runtime.device.compiled_plugin import Support
from headrace.runtime.device.device import Device
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.own_devices import OwnDevices
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceEvent, DeviceState
from headrace.runtime.errors import HeadraceError, UnsupportedLayer, UnsupportedLayers
from headrace.runtime.execution.background import Background
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.extension import merge_functions
from headrace.runtime.network.network import Network
from headrace.runtime.network.work import multiply_adds
from headrace.runtime.transform.query import QueryResult

_FOR_CPU: Final = (NUM_STREAMS, INFERENCE_NUM_THREADS, DISABLE_TRANSFORMATIONS)
_FOR_PARTS: Final = (INFERENCE_PRECISION_HINT, settings.COMPILED_SHAPES)
_FOR_COMPILES: Final = (
    DEVICE_ID,
    INFERENCE_PRECISION_HINT,
    INFERENCE_NUM_THREADS,
    NUM_STREAMS,
)
_TOLD: Final = (
    "FULL_DEVICE_NAME",
    "DEVICE_TYPE",
    "DEVICE_ARCHITECTURE",
    settings.CAPABILITIES,
    "RANGE_FOR_STREAMS",
)
"""Metrics that only OpenVINO knows."""
_log = logging.getLogger(__name__)


class OpenVinoPlugin(OpenVinoDevice):
    """Every device that OpenVINO finds. DEVICE_ID is OpenVINO's name for a device, for example
    ``GPU.0``.

    Thread-safe: `_lock_of_networks` guards `_networks`.

    Args:
        compiling: the `CompilingPlugin`, or what represents it in this process. It has the same
            configuration. It is closed with this device.

    Raises:
        Unavailable: `config` has a value that only OpenVINO can check, and it does not start.
    """

    def __init__(
        self, name: str, services: Services, config: Mapping[str, str], compiling: Device
    ) -> None:
        self.backend_version = compiling.backend_version
        self._compiling = compiling
        self._compiles = Background("headrace-openvino-compiles")
        self._running: dict[Job, HeldNetwork] = {}
        self._devices = OwnDevices(services, ("CPU", "HETERO"))
        self._lock_of_networks = threading.Lock()
        self._networks: WeakSet[OpenVinoNetwork] = WeakSet()
        super().__init__(name, services, config, compiling.places)
        self._unfollow = services.states.subscribe(self._heard)

    # -- description of the device --

    @property
    def full_name(self) -> str:  # type: ignore[override]  # of the default device
        return self._compiling.full_name

    @property
    def architecture(self) -> str:  # type: ignore[override]  # of the default device
        return self._compiling.architecture

    @property
    def capabilities(self) -> tuple[str, ...]:  # type: ignore[override]  # of the default device
        return self._compiling.capabilities

    def announce(self) -> None:
        """Announces the plugin's devices if they are known. Until then they are shown as one."""
        self._compiling.announce()

    def _device_ids(self) -> list[str]:
        return self._compiling.device_ids()

    def _default_streams(self) -> int:
        return self._compiling.default_streams()

    def _memory_bytes(self, device_id: str) -> int:
        """What the compilations take. CPU has the weights."""
        return self._compiling.memory_bytes(device_id)

    def set_config(self, changes: Mapping[str, str]) -> None:
        """As `Device.set_config`. OpenVINO makes its own checks."""
        if self._started:
            self._compiling.set_config(changes)
        super().set_config(changes)

    def _metrics(self) -> Mapping[str, Metric]:
        return {name: partial(self._told, name) for name in _TOLD}

    def _told(self, name: str, options: Mapping[str, str]) -> ParameterValue:
        return self._compiling.get_metric(name, options)

    def _capabilities(self, device: str) -> list[str]:
        return cast("list[str]", self._told(settings.CAPABILITIES, {DEVICE_ID.name: device}))

    # -- networks --

    def _support(self, network: Network, config: Configuration) -> Support:
        return self._unclaimed(network, config).get

    def _unclaimed(self, network: Network, config: Configuration) -> dict[ir.Node, str]:
        device = self.device_id(config)
        return unclaimed_layers(network, device, self._capabilities(device))

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        unclaimed = [
            UnsupportedLayer(node.name or "", node.op_type, why)
            for node, why in self._unclaimed(network, config).items()
        ]
        if unclaimed and config[settings.FALLBACK] != settings.ALL:
            raise UnsupportedLayers(self.name, unclaimed)
        made = self._executable(network, config, unclaimed)
        try:
            made.compile_fixed(token)
        except BaseException:
            made.close()
            raise
        return made

    def _import(
        self, network: Network, native: bytes, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        made = self._executable(network, config)
        try:
            made.restore(native, token)
        except BaseException:
            made.close()
            raise
        return made

    def _executable(
        self,
        network: Network,
        config: Configuration,
        unclaimed: Sequence[UnsupportedLayer] = (),
    ) -> OpenVinoNetwork:
        device = self.device_id(config)
        precision = settings.precision(config, device, self._capabilities(device))
        config = self._fitted(network, config)
        share = min(hints.streams(config), self.streams())
        shown = hints.chosen(config, share)
        computed = {INFERENCE_PRECISION_HINT.name: precision}
        shown = shown.schema.resolve(shown.explicit_strings(), computed)
        given = shown.to_strings()
        passed = {key.name: given[key.name] for key in _FOR_COMPILES}
        passed[DISABLE_TRANSFORMATIONS.name] = "YES"  # it has been transformed
        made = OpenVinoNetwork(
            network,
            shown,
            self.executor(config),
            share,
            self._compiles,
            partial(self._compiled, config=passed),
            self._running,
            unclaimed,
        )
        with self._lock_of_networks:
            self._networks.add(made)
        return made

    def _heard(self, event: DeviceEvent) -> None:
        """Has the shapes compiled again when requests come, where OpenVINO's process has ended. The
        next process is up at once then, because it need not compile them first."""
        if event.device == self.name and event.state is DeviceState.RESTARTING:
            with self._lock_of_networks:
                networks = [*self._networks]
            for network in networks:
                network.forget_compilations()

    def _compiled(
        self, network: Network, *, config: Mapping[str, str], token: CancelToken, native: bytes
    ) -> ExecutableNetwork:
        """A network with known sizes, on OpenVINO."""
        return self._compiling.load_network(Load(network, config, native=native, token=token))

    def _query(self, network: Network, transformed: Network, config: Configuration) -> QueryResult:
        """What OPENVINO claims, without what CPU does not run: nothing would check the answers."""
        claims = super()._query(network, transformed, config)
        if config[settings.FALLBACK] == settings.ALL:
            supported = dict.fromkeys(network.layer_names, self.name)
            claims = replace(claims, supported_layers=supported, unsupported=[])
        refused = {each.layer: each for each in self._cpu.query_network(network, {}).unsupported}
        told = "CPU has to run it, too, and does not: "
        supported = {
            name: device for name, device in claims.supported_layers.items() if name not in refused
        }
        more = [
            each._replace(reason=told + each.reason, device="")
            for name, each in refused.items()
            if name in claims.supported_layers
        ]
        return replace(claims, supported_layers=supported, unsupported=[*claims.unsupported, *more])

    def _compile_checked(self, load: Load, config: Configuration, make: Compile) -> LoadResult:
        made = super()._compile_checked(load, config, make)
        try:
            network = cast("OpenVinoNetwork", made.network)
            is_apart = not isinstance(self._compiling, OpenVinoDevice)
            network.stand_on(self._on_cpu(load, network.config), copied=is_apart)
            if network.unclaimed and (parts := self._in_parts(load, network.config)) is not None:
                network.split(parts)
        except BaseException as error:
            made.network.close()
            if isinstance(error, UnsupportedLayers):
                transformed = self._transformed(load.network, config, load.options)
                self._refuse_unsupported(load.network, transformed, config)
            raise
        return replace(made, notes=(*made.notes, *network.load_notes))

    # -- inside --

    def _fitted(self, network: Network, config: Configuration) -> Configuration:
        """The configuration, with as many streams and threads as the network has work for."""
        work = multiply_adds(network)
        return hints.chosen(config, min(hints.streams(config, work), self.streams()), work)

    def _on_cpu(self, load: Load, config: Configuration) -> ExecutableNetwork:
        """The network on CPU, with as many streams and threads.

        Raises:
            HeadraceError: CPU does not load it.
        """
        given, functions = config.to_strings(), self.extensions.functions()
        network = merge_functions(load.network, functions) if functions else load.network
        passed = {key.name: given[key.name] for key in _FOR_CPU}
        return self._cpu.load_network(Load(network, passed, load.options, token=load.token))

    def _in_parts(self, load: Load, config: Configuration) -> ExecutableNetwork | None:
        """The network as HETERO splits it over this device and CPU; None if it cannot, or gives
        this device nothing."""
        given = config.to_strings()
        passed = {key.name: given[key.name] for key in _FOR_CPU}
        passed |= {f"{self.name}.{key.name}": given[key.name] for key in _FOR_PARTS}
        passed[f"{self.name}.{settings.FALLBACK.name}"] = settings.SHAPES
        mine = DeviceName(self.name, self.device_id(config))
        options = replace(load.options, members=(Member(mine), Member(DeviceName("CPU"))))
        try:
            hetero = self._devices.plugin("HETERO")
            parts = hetero.load_network(Load(load.network, passed, options, token=load.token))
        except HeadraceError as error:
            if load.token.error is not None:
                raise
            _log.info("a network is not split: %s", error)
            return None
        if any(subgraph.device == str(mine) for subgraph in parts.subgraphs()):
            return parts
        parts.close()
        return None

    @property
    def _cpu(self) -> Plugin:
        """
        Raises:
            NotFound, Unavailable: CPU is not installed, or does not start.
        """
        return self._devices.plugin("CPU")

    def kill(self) -> None:
        super().kill()
        self._compiling.kill()
        self._devices.kill()

    def _close(self) -> None:
        self._unfollow()
        self._compiles.stop()
        self._compiling.close()
        self._devices.close()
        super()._close()
