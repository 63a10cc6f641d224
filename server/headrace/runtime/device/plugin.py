"""The interface of a device: what the core, the registry and virtual devices call.

A plugin is made by a function that an entry point of group ``headrace.plugins`` names::

    @plugin_api(1)
    def create_plugin(name: str, services: Services, config: Mapping[str, str]) -> Plugin: ...

It raises if the device cannot work here; the registry keeps the reason. `CompiledPlugin` is the
base of a device that compiles networks itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from headrace.runtime.config.schema import ConfigSchema, Configuration, ParameterValue
from headrace.runtime.device.executable_network import ExecutableNetwork
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
        schema: its configuration keys.
        backend_version: of the library that computes; empty for a virtual device.
        imports_native: it makes use of a backend's own bytes. Such networks are also kept in the
            server's cache, if it has one.
        native_version: raised when the device can no longer import what an earlier version
            exported, or when the earlier version would compile another network.
    """

    name: str
    services: Services
    schema: ConfigSchema
    backend_version: str = ""
    imports_native: bool = False
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
        """OPTIMIZATION_CAPABILITIES, such as FP32."""

    @abstractmethod
    def device_ids(self) -> list[str]:
        """AVAILABLE_DEVICES: ids of the devices of this type, the default one first."""

    @abstractmethod
    def device_id(self, config: Configuration) -> str:
        """The id that a configuration asks for, or the default one.

        Raises:
            NotFound: on an id that is not available.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """What the type's devices are called in metrics: CPU.0; a virtual one by its type alone, as
        is one whose devices are not known yet."""

    @abstractmethod
    def announce(self) -> None:
        """Shows every device of the type in the metrics from now on."""

    @abstractmethod
    def memory_bytes(self, device_id: str) -> int:
        """What loaded networks hold on one of the devices."""

    @abstractmethod
    def default_streams(self) -> int:
        """What NUM_STREAMS is where it is AUTO."""

    # -- configuration and metrics --

    @property
    @abstractmethod
    def config(self) -> Configuration:
        """The device's configuration: what was set over the defaults."""

    @abstractmethod
    def set_config(self, changes: Mapping[str, str]) -> None:
        """Sets keys for networks loaded from now on, and NUM_STREAMS and QUEUE_CAPACITY at once.

        Raises:
            NotFound: on an unknown key.
            InvalidArgument: on a bad value, or a key that the server's configuration alone sets.
            FailedPrecondition: CPU_BIND_THREAD of streams that run already.
            Nothing is changed then.
        """

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """The keys that were set and may be set again, as text."""

    @abstractmethod
    def get_config(self, name: str, options: Mapping[str, str] | None = None) -> ParameterValue:
        """The value of a key, as set or by default; `options` may name a DEVICE_ID."""

    @abstractmethod
    def get_metric(self, name: str, options: Mapping[str, str] | None = None) -> ParameterValue:
        """The value of a metric.

        Raises:
            NotFound: if the device has no such metric, or no device of the id in `options`.
        """

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """Every metric by name, the device's own included."""

    # -- networks --

    @abstractmethod
    def query_network(
        self, network: Network, config: Mapping[str, str], options: NetworkOptions = AS_IT_IS
    ) -> QueryResult:
        """Which layers the device would run; unknown configuration keys are passed over."""

    @abstractmethod
    def load_network(self, load: Load) -> ExecutableNetwork:
        """Compiles a network, or makes it from the backend's own bytes.

        Raises:
            NotFound: on an unknown key.
            InvalidArgument: on a value, an option, or a key of the whole device.
            UnsupportedLayers: listing every layer that the device cannot run.
            InvalidModel: the backend does not take the network for another reason.
            Cancelled: the load's token was cancelled meanwhile.
            Internal: the device raised something else, which is the cause.
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
        """Lets go of the backend; no network is left."""

    @abstractmethod
    def kill(self) -> None:
        """Ends what may not end by itself, as far as that can be done; called on the timer's thread
        when the server's stop has taken too long. `close` follows."""
