"""Repairs GRU, LSTM and RNN in OpenVINO's graph, under the rules of `repairs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.plugins.openvino.graph.passing import same
from headrace.plugins.openvino.library import openvino, operations

_Size: TypeAlias = int | tuple[Any, int]
"""A size, or an input of an operation and the axis that has the size."""

_FITTED: Final = "headrace.fitted"
"""In the runtime information of a Reshape from `_fit`."""
_GATES: Final[Mapping[str, int]] = MappingProxyType(
    {"GRUSequence": 3, "LSTMSequence": 4, "RNNSequence": 1}
)
"""Operations over sequences, and how many rows of weights they have for each hidden element."""


def _sequence(operation: openvino.Node) -> None:
    """The kernels do not compare the sizes of a sequence, its weights, biases, states and lengths,
    and read beyond those that are too small. No case shows it. So each of them whose shape is not
    known is reshaped to the sizes that it has to have. The reshape fails for other sizes.

    If another layer transposes the same tensor, the compiler makes both Transposes one, and then a
    Reshape, which is right for one of them alone. So the operation gets a copy."""
    turned = operation.input_value(0)
    made = turned.get_node()
    if made.get_type_name() == "Transpose" and len(made.input_value(0).get_target_inputs()) > 1:
        operation.input(0).replace_source_output(same(turned).output(0))
    attributes = operation.get_attributes()
    kind, hidden = operation.get_type_name(), attributes["hidden_size"]
    directions = 2 if attributes["direction"] == "bidirectional" else 1
    gates, states = _GATES[kind], 2 if kind == "LSTMSequence" else 1
    rows, biases = gates * hidden, (gates + bool(attributes.get("linear_before_reset"))) * hidden
    weights = states + 2
    batch, size = (operation.input(0), 0), (operation.input(weights), 2)
    wanted: list[list[_Size]] = [
        [batch, (operation.input(0), 1), size],
        *[[batch, directions, hidden]] * states,
        [batch],
        [directions, rows, size],
        [directions, rows, hidden],
        [directions, biases],
    ]
    for index, sizes in enumerate(wanted):
        _fit(operation.input(index), sizes)


def _fit(port: openvino.Input, sizes: list[_Size]) -> None:
    """Makes a run fail if the port would get another shape. A size may be that of another port's
    axis."""
    known = [_length(*size) if isinstance(size, tuple) else size for size in sizes]
    if None not in known and port.get_partial_shape() == openvino.PartialShape(known):
        return
    parts = [
        operations.gather(
            operations.shape_of(size[0].get_source_output()), np.array([size[1]]), np.int64(0)
        )
        if isinstance(size, tuple)
        else operations.constant(np.array([size]))
        for size in sizes
    ]
    shape = operations.concat(parts, 0)
    fitting = operations.reshape(port.get_source_output(), shape, special_zero=False)
    fitting.get_rt_info()[_FITTED] = True
    port.replace_source_output(fitting.output(0))


def fitted(value: openvino.Output) -> tuple[openvino.Output, openvino.Output] | None:
    """The tensor that was reshaped to `value` to have the sizes that it has to have, and these
    sizes. None if it was not reshaped. The Reshape compares the number of elements alone."""
    made = value.get_node()
    if _FITTED not in made.get_rt_info():
        return None
    given, sizes = made.input_values()
    return given, sizes


def _length(port: openvino.Input, axis: int) -> int | None:
    size = port.get_partial_shape()[axis]
    return int(size.get_length()) if size.is_static else None


SEQUENCES: Final[Mapping[str, Callable[[openvino.Node], None]]] = MappingProxyType(
    dict.fromkeys(_GATES, _sequence)
)
