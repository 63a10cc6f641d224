"""Computes a graph node by node, with tinygrad's functions. For the backend's thread only.

tinygrad is lazy: a function builds an expression, and tinygrad makes kernels of it only when its
values are needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from tinygrad.tensor import Tensor

from headrace.plugins.opencl.backend import operators
from headrace.plugins.opencl.backend.thread import kept_kernels
from headrace.plugins.opencl.backend.values import (
    Attributes,
    Constants,
    Value,
    realize,
    tiny_type,
    to_device,
    to_host,
    wait_for,
)
from headrace.plugins.opencl.running.on_host import HOST_ELEMENTS, HostLayers, are_known
from headrace.runtime.errors import HeadraceError, InvalidArgument, InvalidModel, ResourceExhausted
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.values import Array

_SLICED: Final = 64

Timed = Callable[[ir.Node, float], None]


@dataclass(slots=True)
class Evaluation:
    """One pass over a graph: the values so far, and whether another pass may differ.

    Attributes:
        varies: another run may differ, because this one read a value back from the device.
        timed: called with each node of the graph and its seconds. Each node is then computed
            separately.
    """

    token: CancelToken
    values: dict[ir.Value, Value] = field(default_factory=dict)
    varies: bool = False
    timed: Timed | None = None


class TinygradEvaluator:
    """Evaluates one model on one device.

    Args:
        model: the transformed model. Its weights are copied to the device at once.
        device: tinygrad's name of the device, for example ``CL:0``.
    """

    def __init__(self, model: ir.Model, device: str) -> None:
        self._graph = model.graph
        self._device = device
        self._opsets = model.opset_imports
        self._functions: dict[ir.Node, operators.Function] = {}
        self._attributes = Attributes(device)
        self._on_host = HostLayers(model.opset_imports)
        self._constants = Constants(device)
        self._weights: dict[ir.Value, Tensor] = {}
        for value in model.graph.initializers.values():
            if value.const_value is not None and value.const_value.size > HOST_ELEMENTS:
                self._weights[value] = to_device(value.const_value.numpy(), device).realize()

    @property
    def inputs(self) -> list[ir.Value]:
        """The inputs that a run needs."""
        graph = self._graph
        return [value for value in graph.inputs if value.name not in graph.initializers]

    def evaluate(self, evaluation: Evaluation, inputs: Mapping[str, Value]) -> list[Value]:
        """The graph's outputs, in order. Outputs on the device are not computed yet.

        Raises:
            InvalidArgument, InvalidModel, ResourceExhausted: a node refuses its values.
            Cancelled: the evaluation's token was cancelled.
        """
        for value in self.inputs:
            evaluation.values[value] = inputs.get(value.name or "")
        self._run(self._graph, evaluation)
        return [evaluation.values[value] for value in self._graph.outputs]

    def layer(self, node: ir.Node, evaluation: Evaluation) -> Sequence[Value]:
        """The node's outputs for the input values in the evaluation.

        Raises:
            InvalidArgument, InvalidModel, ResourceExhausted: the node refuses its values. The
                message names the layer.
        """
        values = [None if value is None else evaluation.values[value] for value in node.inputs]
        name = f"layer {node.name!r} ({node.op_type})"
        try:
            if node.op_type == "If" and not node.domain:
                return self._if(node, evaluation, values)
            if node.op_type == "Shape" and not node.domain:
                return [_shape(values[0], self._attributes(node))]
            if node.op_type == "Size" and not node.domain:
                return [np.array(_shape(values[0], {}).prod(), np.int64)]
            if are_known(values):
                return self._on_host(node, values)
            return self._on_device(node, evaluation, values)
        except HeadraceError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError) as error:
            raise InvalidArgument(f"{name} does not take these values: {error}") from error
        except MemoryError as error:
            raise ResourceExhausted(f"no memory for {name}: {error}") from error
        except Exception as error:  # tinygrad's own classes share no base class
            raise InvalidModel(f"{name}: {error}", field="model") from error

    # -- nodes --

    def _run(self, graph: ir.Graph, evaluation: Evaluation) -> None:
        for value in graph.initializers.values():
            evaluation.values[value] = self._initializer(value)
        timed = evaluation.timed if graph is self._graph else None
        for node in graph:
            if evaluation.token.error is not None:
                raise evaluation.token.error
            if timed is None:
                outputs = self.layer(node, evaluation)
            else:
                outputs = self._timed(node, evaluation, timed)
            for value, output in zip(node.outputs, outputs, strict=False):
                evaluation.values[value] = self._typed(value, output)

    def _timed(self, node: ir.Node, evaluation: Evaluation, timed: Timed) -> Sequence[Value]:
        """As `layer`, but the outputs are computed when it returns. If kernels were made, it
        computes them once more, so that the measured time does not include the compilation."""
        for _ in range(2):
            kept, start = kept_kernels(), time.perf_counter()
            outputs = self.layer(node, evaluation)
            realize(outputs)
            wait_for(self._device)
            seconds = time.perf_counter() - start
            if kept_kernels() <= kept:
                break
        timed(node, seconds)
        return outputs

    def _initializer(self, value: ir.Value) -> Value:
        weight = self._weights.get(value)
        if weight is not None or value.const_value is None:
            return weight
        array: Array = value.const_value.numpy()
        return array

    def _on_device(
        self, node: ir.Node, evaluation: Evaluation, values: Sequence[Value]
    ) -> Sequence[Value]:
        on_host = operators.host_inputs(node)
        arguments: list[Any] = [
            self._python(evaluation, value) if at in on_host else self._tensor(value)
            for at, value in enumerate(values)
        ]
        if node.op_type == "Gather":
            arguments[1] = _as_slices(values[1], arguments[1])
        if node.op_type == "Unsqueeze" and isinstance(arguments[-1], int):
            arguments[-1] = [arguments[-1]]
        options = dict(self._attributes(node))
        if node.op_type == "Unsqueeze":
            axes = options["axes"] if "axes" in options else arguments[-1]
            rank = arguments[0].ndim + len(axes)
            if len({axis % rank for axis in axes}) < len(axes):
                raise InvalidArgument(f"Unsqueeze: axes {[*axes]} name one twice", field="inputs")
        if node.op_type == "Split" and "num_outputs" not in options:
            options["num_outputs"] = len(node.outputs)
        function = self._functions.get(node)
        if function is None:
            function = operators.find(node, self._opsets.get(node.domain, 1))
            if function is None:
                raise InvalidModel(f"tinygrad has no {node.op_type}", field="model")
            self._functions[node] = function
        outputs = operators.computed(function, arguments, options)
        results = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        for result in results:
            if isinstance(result, Tensor):
                _ = result.shape  # infers the shape, and raises if the inputs do not fit
        return results

    # -- control flow --

    def _if(
        self, node: ir.Node, evaluation: Evaluation, values: Sequence[Value]
    ) -> Sequence[Value]:
        holds = bool(np.all(self._host(evaluation, values[0])))
        body = node.attributes["then_branch" if holds else "else_branch"].as_graph()
        self._run(body, evaluation)
        return [evaluation.values[value] for value in body.outputs]

    # -- values --

    def _typed(self, value: ir.Value, output: Any) -> Value:
        """The output in ONNX's type, because tinygrad gives some integers another width."""
        dtype = value.dtype
        if isinstance(output, Tensor) and dtype is not None:
            wanted = tiny_type(dtype)
            return output if output.dtype == wanted else output.cast(wanted)
        if isinstance(output, np.ndarray) and dtype is not None:
            return output if output.dtype == dtype.numpy() else output.astype(dtype.numpy())
        known: Value = output
        return known

    def _tensor(self, value: Value) -> Tensor | None:
        if value is None or isinstance(value, Tensor):
            return value
        if value.size > HOST_ELEMENTS:
            return to_device(value, self._device)
        return self._constants(value)

    def _host(self, evaluation: Evaluation, value: Value) -> Array:
        if isinstance(value, np.ndarray):
            return value
        if not isinstance(value, Tensor):
            raise TypeError("a tensor is missing")
        evaluation.varies = True
        return to_host(value, self._device)

    def _python(self, evaluation: Evaluation, value: Value) -> Any:
        return None if value is None else self._host(evaluation, value).tolist()


def _shape(value: Value, attributes: Mapping[str, Any]) -> Array:
    if value is None:
        raise TypeError("only a tensor has a shape")
    sizes = tuple(int(size) for size in value.shape)
    start, end = attributes.get("start", 0), attributes.get("end", len(sizes))
    return np.array(sizes[start:end], np.int64)


def _as_slices(indices: Value, otherwise: Any) -> Any:
    """The indices as a list if they are known and few. tinygrad then picks slices and needs no
    kernel."""
    if isinstance(indices, np.ndarray) and indices.ndim <= 1 and 0 < indices.size <= _SLICED:
        return indices.tolist()
    return otherwise
