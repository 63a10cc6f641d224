"""The device: what it is called, what it can do, and how a network is made for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from headrace.plugins.openvino import config as settings
from headrace.plugins.openvino.checkpoint import add_checkpoints
from headrace.plugins.openvino.executable_network import RequestNetwork
from headrace.plugins.openvino.failures import why_not
from headrace.plugins.openvino.requests import Compiled, bind
from headrace.plugins.openvino.session import Runtime
from headrace.plugins.openvino.support import LayerSupport, known_limits, unsupported
from headrace.plugins.openvino.transformations import TRANSFORMATIONS
from headrace.runtime import hints
from headrace.runtime.allocator import release_memory
from headrace.runtime.cancel import CancelToken
from headrace.runtime.config import Configuration, Range
from headrace.runtime.device_metrics import Metric
from headrace.runtime.errors import HeadraceError, Unavailable, UnsupportedLayers
from headrace.runtime.naming import name_layers
from headrace.runtime.network import Network
from headrace.runtime.network_options import NetworkOptions
from headrace.runtime.plugin import Plugin, Support
from headrace.runtime.provenance import Transformation, tracked
from headrace.runtime.services import Services
from headrace.runtime.standard_keys import DEVICE_ID, INFERENCE_PRECISION_HINT
from headrace.runtime.trials import Trials
from headrace.runtime.type_inference import infer_types


class OpenVinoPlugin(Plugin):
    """Every device that OpenVINO finds; DEVICE_ID is OpenVINO's name for one, as ``GPU.0``.

    Raises:
        Unavailable: it finds none.
    """

    schema = settings.SCHEMA
    imports_native = True
    compile_checks_support = True

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        self._runtime = Runtime()
        if not self._runtime.devices:
            raise Unavailable("OpenVINO finds no device on this machine")
        default = self._runtime.devices[0]
        self.full_name = self._runtime.full_name(default)
        self.architecture = self._runtime.architecture(default)
        self.backend_version = self._runtime.version
        self.capabilities = self._runtime.capabilities(default)
        self._trials = {device: self._trials_of(device) for device in self._runtime.devices}
        super().__init__(name, services, config)

    # -- what it says of itself --

    def _device_ids(self) -> list[str]:
        return self._runtime.devices

    def _default_streams(self) -> int:
        return hints.auto_streams(self.config)

    def _set_config(self, config: Configuration) -> None:
        self._precision(config, self.device_id(config))

    def _metrics(self) -> Mapping[str, Metric]:
        runtime = self._runtime
        return {
            "FULL_DEVICE_NAME": lambda options: runtime.full_name(self._named(options)),
            "DEVICE_ARCHITECTURE": lambda options: runtime.architecture(self._named(options)),
            "OPTIMIZATION_CAPABILITIES": lambda options: list(
                runtime.capabilities(self._named(options))
            ),
            "RANGE_FOR_STREAMS": lambda options: Range(*runtime.stream_range(self._named(options))),
        }

    def _named(self, options: Mapping[str, str]) -> str:
        return options.get(DEVICE_ID.name) or self.device_id(self.config)

    # -- networks --

    def transform_network(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        """As every device, and local functions inlined, which OpenVINO has none of."""
        transformed = super().transform_network(network, config, options)
        model = transformed.model
        if model.functions:
            tracked(model, lambda each: InlinePass()(each).modified)
            infer_types(model)
            name_layers(model.graph)
            return Network(model)
        return transformed

    def _transformations(self, config: Configuration) -> Sequence[Transformation]:
        return TRANSFORMATIONS

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Takes any: they are inlined."""

    def _support(self, network: Network, config: Configuration) -> Support:
        device = self.device_id(config)
        self._properties(config, device)  # raises if it has not the precision

        def whole() -> str | None:
            try:
                self._compiled(network, device, config)
            except HeadraceError as error:
                return why_not(error)
            return None

        return LayerSupport(network.model, self._trials[device], whole)

    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> RequestNetwork:
        reasons = known_limits(network.model)
        if reasons:
            raise UnsupportedLayers(self.name, unsupported(reasons))
        device = self.device_id(config)
        return self._executable(network, config, self._compiled(network, device, config, token))

    def _import(
        self, network: Network, native: bytes, config: Configuration, token: CancelToken
    ) -> RequestNetwork:
        device = self.device_id(config)
        restored = self._runtime.restore(native, device, self._properties(config, device))
        return self._executable(network, config, bind(network, restored, None))

    # -- inside --

    def _compiled(
        self,
        network: Network,
        device: str,
        config: Configuration,
        token: CancelToken | None = None,
    ) -> Compiled:
        model, checkpoints = add_checkpoints(network.model)
        converted = self._runtime.convert(model, checkpoints)
        if token is not None and token.error is not None:
            raise token.error  # compiling cannot be stopped any more
        properties = self._properties(config, device)
        return bind(network, self._runtime.compile(converted, device, properties), checkpoints)

    def _properties(self, config: Configuration, device: str) -> dict[str, object]:
        precision = self._precision(config, device)
        settable = self._runtime.settable(device)
        return settings.properties(config, precision, settable, self._at_once(config))

    def _precision(self, config: Configuration, device: str) -> str:
        return settings.precision(config, device, self._runtime.capabilities(device))

    def _at_once(self, config: Configuration) -> int:
        return min(hints.streams(config), self.streams())

    def _executable(
        self,
        network: Network,
        config: Configuration,
        compiled: Compiled,
    ) -> RequestNetwork:
        release_memory()  # what converting took
        device, share = self.device_id(config), self._at_once(config)
        shown = hints.chosen(config, share)
        computed = {INFERENCE_PRECISION_HINT.name: self._precision(config, device)}
        return RequestNetwork(
            network,
            shown.schema.resolve(shown.explicit_strings(), computed),
            self.executor(config),
            share,
            compiled,
            device,
            partial(self._compiled, network, device, config),
        )

    def _trials_of(self, device: str) -> Trials:
        def ask(data: bytes) -> str | None:
            try:
                self._runtime.compile(self._runtime.read(data), device, {})
            except HeadraceError as error:
                return why_not(error)
            return None

        return Trials(ask)
