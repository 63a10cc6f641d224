"""The device plugin: what every device is to the core.

A plugin's public methods validate and account; the hooks with an underscore are the device's. A
plugin is made by a function that an entry point of group ``headrace.plugins`` names::

    @plugin_api(1)
    def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin: ...

It raises if the device cannot work here; the registry keeps the reason.
"""

from __future__ import annotations

import platform
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeAlias, TypeVar

import onnx_ir as ir

from headrace.runtime.cancel import CancelToken
from headrace.runtime.config import ConfigSchema, Configuration, ParameterValue
from headrace.runtime.device_metrics import Metric, standard_metrics
from headrace.runtime.errors import (
    FailedPrecondition,
    HeadraceError,
    Internal,
    InvalidArgument,
    InvalidModel,
    NotFound,
    Unimplemented,
    UnsupportedLayers,
)
from headrace.runtime.executable_network import ExecutableNetwork
from headrace.runtime.extension import merge_functions
from headrace.runtime.network import Network
from headrace.runtime.network_options import NetworkOptions
from headrace.runtime.places import Places
from headrace.runtime.processors import usable_processors
from headrace.runtime.query import QueryResult, query_network
from headrace.runtime.services import Services
from headrace.runtime.standard_keys import (
    CPU_BIND_THREAD,
    DEVICE_ID,
    DISABLE_TRANSFORMATIONS,
    EXCLUSIVE_ASYNC_REQUESTS,
    INFERENCE_PRECISION_HINT,
    NUM_STREAMS,
    QUEUE_CAPACITY,
    STANDARD_KEYS,
)
from headrace.runtime.streams_executor import StreamsExecutor
from headrace.runtime.transform import Transformation, transform_network

PLUGIN_API_VERSION = 1
"""Raised when a plugin written for an earlier one would no longer work."""

Support: TypeAlias = Callable[[ir.Node], "str | None"]
"""None if the device runs the node, else the reason why not."""

_AS_IT_IS = NetworkOptions()

_C = TypeVar("_C", bound="Callable[..., Plugin]")


def plugin_api(version: int) -> Callable[[_C], _C]:
    """Declares for which PLUGIN_API_VERSION a creation function was written."""

    def declare(create: _C) -> _C:
        create.headrace_plugin_api = version  # type: ignore[attr-defined]
        return create

    return declare


class Plugin(ABC):
    """One device type. Thread-safe: `_lock` guards `_settings` and `_extensions`.

    Args:
        name: the device name that it is registered under.
        services: the runtime's.
        config: settings that the server starts it with.
    """

    schema: ClassVar[ConfigSchema] = ConfigSchema(*STANDARD_KEYS)
    full_name: str = ""
    architecture: str = platform.machine()
    backend_version: str = ""
    capabilities: tuple[str, ...] = ("FP32",)
    imports_native: ClassVar[bool] = False
    """`_import` makes use of a backend's own bytes."""
    compile_checks_support: ClassVar[bool] = False
    """`_compile` fails on a layer that the device does not support; without it, each is asked for
    before."""

    def __init__(self, name: str, services: Services, config: Mapping[str, str]) -> None:
        self.name = name
        self.services = services
        self._lock = threading.Lock()
        self._settings: dict[str, str] = {}
        self._extensions: list[ir.Function] = []
        self._places = Places(name, services, self.streams)
        self.set_config(config)

    # -- configuration and metrics --

    @property
    def config(self) -> Configuration:
        """The device's configuration: what was set over the defaults."""
        return self.schema.resolve(self._settings)

    def set_config(self, changes: Mapping[str, str]) -> None:
        """Sets keys for networks loaded from now on, and NUM_STREAMS and QUEUE_CAPACITY at once.

        Raises:
            NotFound: on an unknown key.
            InvalidArgument: on a bad value. Nothing is changed then.
        """
        with self._lock:
            config = self.schema.resolve(self._settings, changes)
            self.device_id(config)
            self._set_config(config)
            self._settings.update(changes)
        self._places.resize(self._device_streams(config), config.get(QUEUE_CAPACITY))

    def settings(self) -> dict[str, str]:
        """The keys that were set, as text."""
        with self._lock:
            return dict(self._settings)

    def get_config(self, name: str, options: Mapping[str, str] | None = None) -> ParameterValue:
        """The value of a key, as set or by default; `options` may name a DEVICE_ID."""
        self._check_options(options or {})
        return self.config.get_parameter(name)

    def get_metric(self, name: str, options: Mapping[str, str] | None = None) -> ParameterValue:
        """The value of a metric.

        Raises:
            NotFound: if the device has no such metric, or no device of the id in `options`.
        """
        metrics = self.metrics()
        if name not in metrics:
            raise NotFound.unknown("device metric", name, metrics, field="name")
        self._check_options(options or {})
        return metrics[name](options or {})

    def metrics(self) -> dict[str, Metric]:
        """Every metric by name, the device's own included."""
        table = standard_metrics(self)
        table.update(self._metrics())
        table["SUPPORTED_METRICS"] = lambda _: list(table)
        return table

    def device_ids(self) -> list[str]:
        """AVAILABLE_DEVICES: ids of the devices of this type, the default one first."""
        return self._device_ids()

    def device_id(self, config: Configuration) -> str:
        """The id that a configuration asks for, or the default one.

        Raises:
            NotFound: on an id that is not available.
        """
        ids = self.device_ids()
        wanted = config.get(DEVICE_ID)
        if not wanted:
            return ids[0] if ids else ""
        if wanted not in ids:
            raise NotFound.unknown("DEVICE_ID", wanted, ids, field="config['DEVICE_ID']")
        return wanted

    # -- networks --

    def transform_network(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> Network:
        """The network as the device gets it: the same for a load and for a query."""
        optional = not config.get(DISABLE_TRANSFORMATIONS)
        half = config.get(INFERENCE_PRECISION_HINT) == "f16"
        with self._lock:
            functions = list(self._extensions)
        return transform_network(
            merge_functions(network, functions) if functions else network,
            preprocess=(options.inputs, options.outputs),
            common=optional,
            fp16_to_fp32=optional and not half and "FP16" not in self.capabilities,
            device_passes=self._transformations(config) if optional else (),
        )

    def query_network(
        self,
        network: Network,
        config: Mapping[str, str],
        options: NetworkOptions = _AS_IT_IS,
    ) -> QueryResult:
        """Which layers the device would run; unknown configuration keys are passed over."""
        configuration = self.schema.resolve(self.settings(), config, ignore_unknown=True)
        return self._query(network, configuration, options)

    def load_network(
        self,
        network: Network,
        config: Mapping[str, str],
        options: NetworkOptions = _AS_IT_IS,
        token: CancelToken | None = None,
    ) -> ExecutableNetwork:
        """Compiles a network.

        Raises:
            NotFound, InvalidArgument: on a key, a value or an option.
            UnsupportedLayers: listing every layer that the device cannot run.
            InvalidModel: the backend does not take the network for another reason.
            Cancelled: `token` was cancelled meanwhile.
        """
        configuration = self.schema.resolve(self.settings(), config)
        compiled = self._make(network, configuration, options, self._compile, token)
        return self._open(compiled, configuration)

    def import_network(
        self,
        network: Network,
        native: bytes,
        config: Mapping[str, str],
        options: NetworkOptions = _AS_IT_IS,
        token: CancelToken | None = None,
    ) -> ExecutableNetwork:
        """Makes a network from the backend's own bytes, which the caller has verified, or, if they
        are empty or the device has no use for them, compiles it anew. Raises as `load_network`."""
        configuration = self.schema.resolve(self.settings(), config)

        def make(
            transformed: Network, configuration: Configuration, token: CancelToken
        ) -> ExecutableNetwork:
            if native and self.imports_native:
                return self._import(transformed, native, configuration, token)
            return self._compile(transformed, configuration, token)

        return self._open(self._make(network, configuration, options, make, token), configuration)

    def add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Gives the device operators as ONNX local functions.

        Raises:
            Unimplemented: the device takes no extensions.
        """
        self._add_extension(functions)
        keys = {function.identifier() for function in functions}
        with self._lock:
            kept = [known for known in self._extensions if known.identifier() not in keys]
            self._extensions = [*kept, *functions]

    def close(self) -> None:
        """Lets go of the backend; no network is left."""
        self._close()

    # -- streams --

    def executor(self, config: Configuration) -> StreamsExecutor:
        """The streams for a network with this configuration: those of its device id, or the one
        stream that all networks with EXCLUSIVE_ASYNC_REQUESTS share."""
        return self._places.executor(
            self.device_id(config),
            exclusive=config.get(EXCLUSIVE_ASYNC_REQUESTS),
            bind=self.config.get(CPU_BIND_THREAD),
        )

    def running_executor(self, options: Mapping[str, str]) -> StreamsExecutor | None:
        """The streams of the device that `options` names, if any network has needed them yet."""
        return self._places.find_executor(self.device_id(self.schema.resolve(options)))

    def default_streams(self) -> int:
        """What NUM_STREAMS is where it is AUTO."""
        return self._default_streams()

    def streams(self) -> int:
        """NUM_STREAMS of the device, AUTO resolved."""
        return self._device_streams(self.config)

    def share(self, config: Configuration) -> int:
        """How many of the device's streams a network with this configuration may use."""
        return min(config.get(NUM_STREAMS) or self.streams(), self.streams())

    # -- inside --

    def _make(
        self,
        network: Network,
        config: Configuration,
        options: NetworkOptions,
        make: Callable[[Network, Configuration, CancelToken], ExecutableNetwork],
        token: CancelToken | None,
    ) -> ExecutableNetwork:
        token = token or CancelToken()
        transformed = self.transform_network(network, config, options)
        if not self.compile_checks_support:
            self._refuse_unsupported(network, config, options)
        try:
            return make(transformed, config, token)
        except HeadraceError as error:
            if token.error is not None:
                raise token.error from error
            if isinstance(error, InvalidArgument | FailedPrecondition | Internal):
                self._refuse_unsupported(network, config, options)
            if isinstance(error, Internal):
                raise InvalidModel(error.message, field="model") from error
            raise

    def _refuse_unsupported(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> None:
        unsupported = self._query(network, config, options).unsupported
        if unsupported:
            raise UnsupportedLayers(self.name, unsupported)

    def _query(
        self, network: Network, config: Configuration, options: NetworkOptions
    ) -> QueryResult:
        transformed = self.transform_network(network, config, options)
        return query_network(network, transformed, self._support(transformed, config), self.name)

    def _open(self, compiled: ExecutableNetwork, config: Configuration) -> ExecutableNetwork:
        compiled.open(self._places.place(self.device_id(config), compiled.executor))
        return compiled

    def _device_streams(self, config: Configuration) -> int:
        return config.get(NUM_STREAMS) or self._default_streams()

    def _check_options(self, options: Mapping[str, str]) -> None:
        for name, value in options.items():
            if name != DEVICE_ID.name:
                raise NotFound.unknown("option", name, [DEVICE_ID.name], field="options")
            self.device_id(self.schema.resolve({DEVICE_ID.name: value}))

    # -- hooks of the device --

    @abstractmethod
    def _support(self, network: Network, config: Configuration) -> Support:
        """Says of each node of a transformed network whether the device runs it."""

    @abstractmethod
    def _compile(
        self, network: Network, config: Configuration, token: CancelToken
    ) -> ExecutableNetwork:
        """Compiles a transformed network."""

    def _import(
        self,
        network: Network,
        native: bytes,  # noqa: ARG002 - for devices that make use of it
        config: Configuration,
        token: CancelToken,
    ) -> ExecutableNetwork:
        """Makes a network from what `ExecutableNetwork._export` gave."""
        return self._compile(network, config, token)

    def _transformations(
        self,
        config: Configuration,  # noqa: ARG002 - for devices whose passes depend on it
    ) -> Sequence[Transformation]:
        """The device's own graph transformations."""
        return ()

    def _device_ids(self) -> list[str]:
        return [""]

    def _default_streams(self) -> int:
        return usable_processors()

    def _metrics(self) -> Mapping[str, Metric]:
        """The device's own metrics."""
        return {}

    def _set_config(self, config: Configuration) -> None:  # noqa: B027 - an optional hook
        """Takes note of a new configuration of the device; may refuse it."""

    def _add_extension(self, functions: Sequence[ir.Function]) -> None:  # noqa: ARG002
        raise Unimplemented(f"device {self.name} takes no extensions")

    def _close(self) -> None:  # noqa: B027 - an optional hook
        """Frees what the backend holds."""
