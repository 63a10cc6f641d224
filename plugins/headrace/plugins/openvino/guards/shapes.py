"""Checks without a run whether a request's shapes fit a network."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from headrace.plugins.openvino.failures import NATIVE, run_failure
from headrace.plugins.openvino.graph.empty_tensors import bodies
from headrace.plugins.openvino.library import openvino, operations
from headrace.runtime.network.values import Array, Value

_Given: TypeAlias = tuple[tuple[int, ...], bytes]
"""An input's shape, and its elements if shapes may follow from them."""

_REMEMBERED: Final = 4096
_FEW: Final = 64
"""The most elements of an input whose values may be shapes."""


class Shapes:
    """Infers the shapes of all layers as OpenVINO does. It starts from the shapes of a request, and
    from the request's short lists of integers, which may be shapes themselves. Thread-safe: `_lock`
    guards the model.

    Args:
        model: the model that the network was compiled from.
        compiled: the compiled network.
        inputs: the names and indices of the compiled network's inputs.
    """

    def __init__(
        self,
        model: openvino.Model,
        compiled: openvino.CompiledModel,
        inputs: Sequence[tuple[str, int]],
    ) -> None:
        self._model = _without_bodies(model)
        self._inputs = inputs
        self._lock = threading.Lock()
        self._good: set[tuple[_Given, ...]] = set()
        names, others = ([port.get_names() for port in each.inputs] for each in (model, compiled))
        self._can_tell = names == others

    def check(self, values: Mapping[str, Value]) -> None:
        """
        Raises:
            InvalidArgument: a layer does not take the shapes that it would get.
        """
        if not self._can_tell:
            return
        arrays = [np.asarray(values[name]) for name, _ in self._inputs]
        given = tuple((each.shape, each.tobytes() if _few(each) else b"") for each in arrays)
        if given in self._good:
            return
        try:
            self._infer(arrays)
        except NATIVE as error:
            raise run_failure(error) from error
        if len(self._good) == _REMEMBERED:
            self._good.clear()
        self._good.add(given)

    def _infer(self, arrays: Sequence[Array]) -> None:
        with self._lock:
            model = self._model.clone()
        parameters = model.get_parameters()
        for (_, index), array in zip(self._inputs, arrays, strict=True):
            parameter = parameters[index]
            parameter.set_partial_shape(openvino.PartialShape(list(array.shape)))
            if _few(array):
                value = operations.constant(array, parameter.get_element_type())
                parameter.output(0).replace(value.output(0))
        model.validate_nodes_and_infer_types()


def _without_bodies(model: openvino.Model) -> openvino.Model:
    """A copy of the model that takes the results of loops and branches as inputs. It has no bodies,
    because a request need not fit a body that it does not run."""
    rest = model.clone()
    for operation in rest.get_ops():
        if not bodies(operation):
            continue
        rest.add_results([operations.result(value) for value in operation.input_values()])
        for output in operation.outputs():
            given = openvino.op.Parameter(output.get_element_type(), output.get_partial_shape())
            readers = output.get_target_inputs()
            rest.add_parameters([given])
            for reader in readers:
                reader.replace_source_output(given.output(0))
    return rest


def _few(array: Array) -> bool:
    return array.dtype.kind in "iu" and array.ndim <= 1 and array.size <= _FEW
