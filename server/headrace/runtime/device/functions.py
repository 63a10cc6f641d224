"""A device whose layers are Python functions of whoever runs the server.

It is for what lies between networks, as cutting lines of text out of a page. Clients can load
networks of these layers, and give their tensors. They cannot give functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.compiled_plugin import CompiledPlugin, Support
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.services import Services
from headrace.runtime.errors import InvalidArgument, did_you_mean
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network, Port
from headrace.runtime.network.values import Array, Value

Function: TypeAlias = Callable[..., Any]


class FunctionsPlugin(CompiledPlugin):
    """Runs each layer of `domain` as the function of its name.

    A function gets the layer's inputs as arrays that it may only read, and the layer's attributes
    by name; a sequence is a list of arrays. It returns an array or a list, or a tuple of them if
    the layer has several outputs. As many threads as the device has streams call it at once. If it
    raises ValueError, the request fails with INVALID_ARGUMENT and the error's text. Other errors
    are for the log alone.

    Args:
        name, services, config: as `CompiledPlugin`.
        domain: of the layers.
        functions: by the operator's name.
    """

    full_name = "Runs Python functions"

    def __init__(
        self,
        name: str,
        services: Services,
        config: Mapping[str, str],
        domain: str,
        functions: Mapping[str, Function],
    ) -> None:
        super().__init__(name, services, config)
        self._domain = domain
        self._functions = dict(functions)

    def _device_ids(self) -> list[str]:
        return ["0"]

    def _support(self, network: Network, config: Configuration) -> Support:  # noqa: ARG002
        def reason_against(node: ir.Node) -> str | None:
            if node.domain != self._domain:
                return f"the device runs operators of the domain {self._domain!r} alone"
            if node.op_type not in self._functions:
                return f"there is no such function{did_you_mean(node.op_type, self._functions)}"
            return None

        return reason_against

    def _compile(
        self,
        network: Network,
        config: Configuration,
        token: CancelToken,  # noqa: ARG002 - it takes no time
    ) -> ExecutableNetwork:
        return _FunctionsNetwork(network, config, self, self._functions)


class _FunctionsNetwork(ExecutableNetwork):
    """Calls the functions of the layers in their order."""

    def __init__(
        self,
        network: Network,
        config: Configuration,
        plugin: FunctionsPlugin,
        functions: Mapping[str, Function],
    ) -> None:
        super().__init__(network, config, plugin.executor(config), streams=plugin.share(config))
        graph = network.model.graph
        self._calls = [(node, functions[node.op_type], _attributes(node)) for node in graph]
        self._constants = {
            value.name: value.const_value.numpy()
            for value in graph.initializers.values()
            if value.const_value is not None
        }
        self._ports = {port.name: port for port in self.outputs}

    def _infer(self, job: Job) -> None:
        values: dict[Any, Value] = {**self._constants, **job.inputs}
        for node, function, attributes in self._calls:
            if job.token.error is not None:
                raise job.token.error
            given = [None if each is None else _readable(values[each.name]) for each in node.inputs]
            try:
                made = function(*given, **attributes)
            except ValueError as error:
                message = f"layer {node.name!r} ({node.op_type}) does not take these values: "
                raise InvalidArgument(f"{message}{error}", field="inputs") from error
            made = made if isinstance(made, tuple) else (made,)
            if len(made) != len(node.outputs):
                raise TypeError(f"{node.op_type} gave {len(made)} of {len(node.outputs)} outputs")
            values.update((out.name, each) for out, each in zip(node.outputs, made, strict=True))
        job.outputs = {name: _output(values[name], self._ports[name]) for name in job.output_names}

    def _close(self) -> None:
        self._calls, self._constants = [], {}


def _attributes(node: ir.Node) -> dict[str, Any]:
    found = {name: each.value for name, each in node.attributes.items()}
    return {
        name: each.numpy() if isinstance(each, ir.TensorProtocol) else each
        for name, each in found.items()
    }


def _readable(value: Value) -> Value:
    """A view that cannot be written to, because others may read the same memory."""
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def _output(value: Any, port: Port) -> Value:
    """What a function gave, as arrays of the output's type that share no memory with others."""
    if port.kind == "sequence":
        return [_array(each, port.dtype) for each in value]
    return _array(value, port.dtype)


def _array(value: Any, dtype: ir.DataType) -> Array:
    if dtype == ir.DataType.STRING:
        return np.array(value, object)
    array: Array = np.asarray(value, dtype.numpy())
    return array if array.base is None else array.copy()
