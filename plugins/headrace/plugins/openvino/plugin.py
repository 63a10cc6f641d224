"""The OpenVINO device: its names, its capabilities, and how it makes a network.

Nothing here imports OpenVINO before it is needed. See `start`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

import onnx_ir as ir

from headrace.plugins.openvino import config as settings
from headrace.plugins.openvino.running.compiles import Compiles
from headrace.plugins.openvino.start import FirstUse, installed_version, start_openvino
from headrace.plugins.openvino.transformations import TRANSFORMATIONS
from headrace.runtime.config import hints
from headrace.runtime.config.device_name import DeviceName, Member
from headrace.runtime.config.schema import Configuration, Range
from headrace.runtime.config.standard_keys import (
    DEVICE_ID,
    DISABLE_TRANSFORMATIONS,
    INFERENCE_NUM_THREADS,
    INFERENCE_PRECISION_HINT,
    NUM_STREAMS,
)
from headrace.runtime.device.cached_load import Compile
from headrace.runtime.device.compiled_plugin import CompiledPlugin, Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import HeadraceError, UnsupportedLayer, UnsupportedLayers
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.intake.naming import name_layers
from headrace.runtime.intake.provenance import Transformation, tracked
from headrace.runtime.network.extension import merge_functions
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.network.work import multiply_adds
from headrace.runtime.transform.functions import inline_functions
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult

if TYPE_CHECKING:
    from headrace.plugins.openvino.backend.compilation import Compilation
    from headrace.plugins.openvino.backend.core import Runtime
    from headrace.plugins.openvino.compiler import Compiler
    from headrace.plugins.openvino.executable_network import OpenVinoNetwork

_FOR_CPU: Final = (NUM_STREAMS, INFERENCE_NUM_THREADS, DISABLE_TRANSFORMATIONS)
_FOR_PARTS: Final = (INFERENCE_PRECISION_HINT, settings.COMPILED_SHAPES)
_log = logging.getLogger(__name__)


class OpenVinoPlugin(CompiledPlugin):
    """Every device that OpenVINO finds. DEVICE_ID is OpenVINO's name for a device, for example
    ``GPU.0``.

    Any method that needs the library starts it. If the library does not start, the method raises
    Unavailable, and the device is down from then on.

    Args:
        start: starts the library; raises Unavailable.

    Raises:
        Unavailable: the library is not installed; or `config` has a value that only the library can
            check, and the library does not start.
    """

    schema = settings.SCHEMA
    compile_checks_support = True
    imports_native = True

    def __init__(
        self,
        name: str,
        services: Services,
        config: Mapping[str, str],
        start: Callable[[], Compiler] = start_openvino,
    ) -> None:
        self.backend_version = f"OpenVINO {installed_version()}"
        self._openvino = FirstUse(
            start,
            lambda compiler: self._places.announce(compiler.runtime.devices),
            lambda reason: services.states.set(name, DeviceState.DOWN, reason),
        )
        self._compiles = Compiles()
        self._networks: WeakSet[OpenVinoNetwork] = WeakSet()
        super().__init__(name, services, config)

    # -- description of the device --

    @property
    def full_name(self) -> str:  # type: ignore[override]  # of the default device
        return self._runtime.full_name(self._runtime.devices[0])

    @property
    def architecture(self) -> str:  # type: ignore[override]  # of the default device
        return self._runtime.architecture(self._runtime.devices[0])

    @property
    def capabilities(self) -> tuple[str, ...]:  # type: ignore[override]  # of the default device
        return self._runtime.capabilities(self._runtime.devices[0])

    @property
    def _runtime(self) -> Runtime:
        return self._openvino.get().runtime

    def announce(self) -> None:
        """Announces the plugin's devices if they are known. Until then they are shown as one."""
        if self._openvino.made() is not None:
            super().announce()

    def _device_ids(self) -> list[str]:
        return self._runtime.devices

    def _default_streams(self) -> int:
        return hints.auto_streams(self.config)

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Does the same as `Device.set_config`. Starts OpenVINO first if only OpenVINO can check a
        value. The start comes before the device's lock is taken, because a failure calls
        listeners."""
        if any(changes.get(key.name) for key in (DEVICE_ID, INFERENCE_PRECISION_HINT)):
            self._openvino.get()
        super().set_config(changes)

    def _set_config(self, config: Configuration) -> None:
        if config[INFERENCE_PRECISION_HINT]:
            self._precision(config, self.device_id(config))

    def _metrics(self) -> Mapping[str, Metric]:
        return {
            "FULL_DEVICE_NAME": lambda options: self._runtime.full_name(self._named(options)),
            "DEVICE_TYPE": lambda options: self._runtime.device_type(self._named(options)),
            "DEVICE_ARCHITECTURE": lambda options: self._runtime.architecture(self._named(options)),
            "OPTIMIZATION_CAPABILITIES": lambda options: list(
                self._runtime.capabilities(self._named(options))
            ),
            "RANGE_FOR_STREAMS": lambda options: Range(
                *self._runtime.stream_range(self._named(options))
            ),
        }

    def _named(self, options: Mapping[str, str]) -> str:
        return options.get(DEVICE_ID.name) or self.device_id(self.config)

    # -- networks --

    def transform_network(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        """Transforms the network as every device does. Then inlines local functions, because
        OpenVINO has none. Inputs that have a default become constants, because no request gives
        them."""
        transformed = super().transform_network(network, config, options)
        model = transformed.model
        if model.functions:
            tracked(model, inline_functions)
            infer_types(model)
            name_layers(model.graph)
            transformed = Network(model)
        inputs = model.graph.inputs
        inputs[:] = [value for value in inputs if not value.is_initializer()]
        return transformed

    def _transformations(self, config: Configuration) -> Sequence[Transformation]:
        return TRANSFORMATIONS

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Accepts any extension, because its functions are inlined."""

    def _support(self, network: Network, config: Configuration) -> Support:
        device = self.device_id(config)
        return self._openvino.get().unclaimed(network, device).get

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        compiler, device = self._openvino.get(), self.device_id(config)
        unclaimed = [
            UnsupportedLayer(node.name or "", node.op_type, why)
            for node, why in compiler.unclaimed(network, device).items()
        ]
        if unclaimed and config[settings.FALLBACK] != settings.ALL:
            raise UnsupportedLayers(self.name, unclaimed)
        config = self._fitted(network, config)
        made = self._executable(network, config, None, unclaimed)
        try:
            made.compile_fixed(token)
        except BaseException:
            made.close()
            raise
        return made

    def _import(
        self, network: Network, native: bytes, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        device, config = self.device_id(config), self._fitted(network, config)
        properties = self._properties(config, device)
        restored = self._openvino.get().restore(network, native, device, properties)
        return self._executable(network, config, restored)

    def _executable(
        self,
        network: Network,
        config: Configuration,
        compilation: Compilation | None,
        unclaimed: Sequence[UnsupportedLayer] = (),
    ) -> OpenVinoNetwork:
        compiler, device = self._openvino.get(), self.device_id(config)
        share = self._at_once(config)
        shown = hints.chosen(config, share)
        computed = {INFERENCE_PRECISION_HINT.name: self._precision(config, device)}
        made = compiler.executable(
            network,
            shown.schema.resolve(shown.explicit_strings(), computed),
            self.executor(config),
            share,
            self._compiles,
            partial(compiler.compile, device=device, properties=self._properties(config, device)),
            compilation,
            unclaimed,
            self.services.risks,
        )
        self._networks.add(made)
        return made

    def _query(self, network: Network, transformed: Network, config: Configuration) -> QueryResult:
        """What OPENVINO claims, without what CPU does not run: nothing would check the answers."""
        found = super()._query(network, transformed, config)
        if config[settings.FALLBACK] == settings.ALL:
            supported = dict.fromkeys(network.layer_names, self.name)
            found = replace(found, supported_layers=supported, unsupported=[])
        refused = {each.layer: each for each in self._cpu.query_network(network, {}).unsupported}
        told = "CPU has to run it, too, and does not: "
        supported = {
            name: device for name, device in found.supported_layers.items() if name not in refused
        }
        more = [
            each._replace(reason=told + each.reason, device="")
            for name, each in refused.items()
            if name in found.supported_layers
        ]
        return replace(found, supported_layers=supported, unsupported=[*found.unsupported, *more])

    def _compile_checked(self, load: Load, config: Configuration, make: Compile) -> LoadResult:
        made = super()._compile_checked(load, config, make)
        try:
            network = cast("OpenVinoNetwork", made.network)
            network.stand_on(self._on_cpu(load, network.config))
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

    def _properties(self, config: Configuration, device: str) -> dict[str, object]:
        precision = self._precision(config, device)
        settable = self._runtime.settable(device)
        return settings.properties(config, precision, settable, self._at_once(config))

    def _precision(self, config: Configuration, device: str) -> str:
        return settings.precision(config, device, self._runtime.capabilities(device))

    def _fitted(self, network: Network, config: Configuration) -> Configuration:
        """The configuration, with as many streams and threads as the network has work for."""
        work = multiply_adds(network)
        return hints.chosen(config, min(hints.streams(config, work), self.streams()), work)

    def _at_once(self, config: Configuration) -> int:
        return min(hints.streams(config), self.streams())

    def _on_cpu(self, load: Load, config: Configuration) -> ExecutableNetwork:
        """The network on CPU, with as many streams and threads.

        Raises:
            HeadraceError: CPU does not load it.
        """
        given, functions = config.to_strings(), self._extensions.functions()
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
            hetero = self.services.devices.plugin("HETERO")
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
            NotFound, Unavailable: the server has no CPU.
        """
        return self.services.devices.plugin("CPU")

    def _memory_bytes(self, device_id: str) -> int:
        """The weights, which CPU has, and what the compilations were measured to take."""
        device = f"{self.name}.{device_id}"
        networks = (each for each in [*self._networks] if each.place.device == device)
        return super()._memory_bytes(device_id) + sum(
            network.compiled_bytes for network in networks
        )

    def _close(self) -> None:
        self._compiles.stop()
        super()._close()
