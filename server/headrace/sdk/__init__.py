"""All names that the author of a device plugin needs to import.

Modules of ``headrace.runtime`` move and change. The names in this package stay as they are while
`PLUGIN_API_VERSION` is the same. The version rises when a plugin for an earlier version would no
longer work. A plugin says with `plugin_api` which version it was written for.

- The plugin: `plugin_api`, `Plugin`, its base `CompiledPlugin`, and `Services`. A device whose
  layers are Python functions is a `FunctionsPlugin`. A device that runs networks on other devices
  derives from `Device`, finds them in the `Devices` of the services, and gives each a `Load`.
- Configuration: `Key`, `ConfigSchema`, `Configuration`, and the standard keys.
- Metrics and states: `Metric`, `ParameterValue`, `Range`, `DeviceState`.
- A network before it is compiled: `Network`, its `Port` and `Layer`, `NetworkOptions`; `Support`
  and `QueryResult` say which parts of it the device runs.
- Transformations: `Transformation`, `rewriting`, `infer_types`.
- A network as it runs: `ExecutableNetwork`, `Job`, `CancelToken`, `LayerProfile`; `Value` and
  `Array` for inputs and outputs; `Stage`, `Share` and `StreamsExecutor` for other executors.
- onnx's reference evaluator: `CorrectedEvaluator`, `answer`.
- Errors: `HeadraceError` and its sub-classes; `config_field` names the key at fault.

The manual's page "Write a device plugin" shows how to use them. `headrace plugin new` writes a
plugin that uses them, and `headrace.testing` has the tests that every device has to pass.
"""

import typing as _typing

from headrace.runtime.config.key import Key, config_field
from headrace.runtime.config.schema import ConfigSchema, Configuration, ParameterValue, Range
from headrace.runtime.config.standard_keys import (
    ALLOW_AUTO_BATCHING,
    AUTO_BATCH_TIMEOUT,
    CACHE_DIR,
    CPU_BIND_THREAD,
    DEVICE_ID,
    DISABLE_TRANSFORMATIONS,
    EXCLUSIVE_ASYNC_REQUESTS,
    EXECUTION_TIMEOUT,
    INFERENCE_NUM_THREADS,
    INFERENCE_PRECISION_HINT,
    ISOLATION,
    NUM_STREAMS,
    PERF_COUNT,
    PERFORMANCE_HINT,
    PERFORMANCE_HINT_NUM_REQUESTS,
    QUEUE_CAPACITY,
    STANDARD_KEYS,
)
from headrace.runtime.device.api import PLUGIN_API_VERSION, plugin_api
from headrace.runtime.device.compiled_plugin import CompiledPlugin, Support
from headrace.runtime.device.device import Device
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.functions import FunctionsPlugin
from headrace.runtime.device.load import Load
from headrace.runtime.device.metrics import Metric
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Devices, Services
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    HeadraceError,
    Internal,
    InvalidArgument,
    InvalidModel,
    NotFound,
    NotInstalled,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
    UnsupportedLayer,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, LayerProfile
from headrace.runtime.execution.stages import Stage
from headrace.runtime.execution.streams_executor import Share, StreamsExecutor
from headrace.runtime.network.network import Layer, Network, Port
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.network.values import Array, Value
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.query import QueryResult
from headrace.runtime.transform.transform import Transformation, rewriting

if _typing.TYPE_CHECKING:
    from headrace.runtime.network.reference.evaluator import CorrectedEvaluator, answer

__all__ = [
    "ALLOW_AUTO_BATCHING",
    "AUTO_BATCH_TIMEOUT",
    "CACHE_DIR",
    "CPU_BIND_THREAD",
    "DEVICE_ID",
    "DISABLE_TRANSFORMATIONS",
    "EXCLUSIVE_ASYNC_REQUESTS",
    "EXECUTION_TIMEOUT",
    "INFERENCE_NUM_THREADS",
    "INFERENCE_PRECISION_HINT",
    "ISOLATION",
    "NUM_STREAMS",
    "PERFORMANCE_HINT",
    "PERFORMANCE_HINT_NUM_REQUESTS",
    "PERF_COUNT",
    "PLUGIN_API_VERSION",
    "QUEUE_CAPACITY",
    "STANDARD_KEYS",
    "Array",
    "CancelToken",
    "Cancelled",
    "CompiledPlugin",
    "ConfigSchema",
    "Configuration",
    "CorrectedEvaluator",
    "DeadlineExceeded",
    "Device",
    "DeviceState",
    "Devices",
    "ExecutableNetwork",
    "FailedPrecondition",
    "FunctionsPlugin",
    "HeadraceError",
    "Internal",
    "InvalidArgument",
    "InvalidModel",
    "Job",
    "Key",
    "Layer",
    "LayerProfile",
    "Load",
    "Metric",
    "Network",
    "NetworkOptions",
    "NotFound",
    "NotInstalled",
    "ParameterValue",
    "Plugin",
    "Port",
    "QueryResult",
    "Range",
    "ResourceExhausted",
    "Services",
    "Share",
    "Stage",
    "StreamsExecutor",
    "Support",
    "Transformation",
    "Unavailable",
    "Unimplemented",
    "UnsupportedLayer",
    "UnsupportedLayers",
    "Value",
    "answer",
    "config_field",
    "infer_types",
    "plugin_api",
    "rewriting",
]

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """The evaluator's names, which take 18 MB of memory and which few devices need."""
        if name not in ("CorrectedEvaluator", "answer"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from headrace.runtime.network.reference import evaluator

        return getattr(evaluator, name)
