"""The interface of a device. The core, the registry and virtual devices call it.

An entry point of group ``headrace.plugins`` names the function that makes a plugin::

    @plugin_api(1)
    def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin: ...

The function raises if the device cannot work here, and the registry keeps the reason.
`CompiledPlugin` is the base of a device that compiles networks itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from headrace.runtime.config.schema import ConfigSchema, Configuration, ParameterValue
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.extensions import Extensions
from headrace.runtime.device.load import Load
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.services import Services
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult

AS_IT_IS = NetworkOptions()
"""The options of a caller who wants the network as it is."""


class Plugin(ABC):
    """One device type. Thread-safe.

    Attributes:
        name: the device name that it is registered under.
        schema: the device's configuration keys.
        backend_version: the version of the library that computes; empty for a virtual device.
        imports_native: whether the device can load a backend's own bytes. The server's cache, if
            it has one, also keeps the networks of such a device.
        extensions: the operators that clients have given the device.
        native_version: it goes up when the device can no longer import the bytes that an earlier
            version exported, or when the earlier version would compile another network.
    """

    name: str
    services: Services
    schema: ConfigSchema
    backend_version: str = ""
    imports_native: bool = False
    extensions: Extensions
    native_version: int = 1

    # -- what it says of itself --

    @property
    @abstractmethod
    def full_name(self) -> str: ...

    @property
    @abstractmethod
    def architecture(self) -> str: ...

    @property
    @abstractmethod
    def capabilities(self) -> tuple[str, ...]:
        """OPTIMIZATION_CAPABILITIES, for example FP32."""

    @abstractmethod
    def device_ids(self) -> list[str]:
        """AVAILABLE_DEVICES: the ids of the devices of this type. The default device is first."""

    @abstractmethod
    def device_id(self, config: Configuration) -> str:
        """The id that a configuration asks for, or the default one.

        Raises:
            NotFound: the id is not available.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """The names of the type's devices in metrics, for example CPU.0. A virtual device has the
        type's name alone, and so does a type whose devices are not known yet."""

    @abstractmethod
    def announce(self) -> None:
        """Shows every device of the type in the metrics from now on."""

    @abstractmethod
    def memory_bytes(self, device_id: str) -> int:
        """The bytes that loaded networks hold on one of the devices."""

    @abstractmethod
    def default_streams(self) -> int:
        """The number of streams that NUM_STREAMS=AUTO stands for."""

    # -- configuration and metrics --

    @property
    @abstractmethod
    def config(self) -> Configuration:
        """The device's configuration: the defaults, and the values set over them."""

    @abstractmethod
    def set_config(self, changes: Mapping[str, str]) -> None:
        """Sets keys for networks loaded from now on. NUM_STREAMS and QUEUE_CAPACITY change at once.

        Raises:
            NotFound: a key is unknown.
            InvalidArgument: a value is bad, or only the server's configuration may set a key.
            FailedPrecondition: CPU_BIND_THREAD cannot change, because the streams already run.
            If it raises, nothing is changed.
        """

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """The keys that were set and may be set again, as text."""

    @abstractmethod
    def get_config(self, name: str, options: Mapping[str, str] | None = None) -> ParameterValue:
        """The value of a key: the one that was set, or the default. `options` may name a
        DEVICE_ID."""

    @abstractmethod
    def get_metric(self, name: str, options: Mapping[str, str] | None = None) -> ParameterValue:
        """The value of a metric.

        Raises:
            NotFound: the device has no such metric, or there is no device with the id in `options`.
        """

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """Every metric by name, the device's own included."""

    # -- networks --

    @abstractmethod
    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        """Returns which layers the device would run. It ignores unknown configuration keys."""

    @abstractmethod
    def load_network(self, load: Load) -> ExecutableNetwork:
        """Compiles a network, or makes it from the backend's own bytes.

        Raises:
            NotFound: a key is unknown.
            InvalidArgument: a value or option is bad, or a key belongs to the whole device.
            UnsupportedLayers: the device cannot run some layers. The error lists all of them.
            InvalidModel: the backend does not accept the network for another reason.
            Cancelled: the load's token was cancelled during the load.
            Internal: the device raised another error, which is the cause.
        """

    @abstractmethod
    def add_extension(self, functions: Sequence[ir.Function]) -> None:
        """Gives the device operators as ONNX local functions.

        Raises:
            Unimplemented: the device takes no extensions.
        """

    # -- end --

    @abstractmethod
    def close(self) -> None:
        """Releases the backend. No network is left at that time."""

    @abstractmethod
    def kill(self) -> None:
        """Ends, as far as possible, what may not end by itself. The timer's thread calls it when
        the server takes too long to stop. `close` follows."""
