"""Says which networks may run rows of several requests together, as far as inputs and operators
tell. A trial tells the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import onnx_ir as ir

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.intake import naming
from headrace.runtime.network.network import Network, Port

_SCALES: Final = "it takes its scale from all rows together"
_COUNTS: Final = "the size of its result depends on what is in all rows"
_BY_VALUES: Final = {
    ("", "DynamicQuantizeLinear"): _SCALES,
    ("com.microsoft", "DynamicQuantizeMatMul"): _SCALES,
    ("com.microsoft", "DynamicQuantizeLSTM"): _SCALES,
    ("", "Compress"): _COUNTS,
    ("", "NonMaxSuppression"): _COUNTS,
    ("", "NonZero"): _COUNTS,
    ("", "StringSplit"): _COUNTS,
    ("", "Unique"): _COUNTS,
    ("com.microsoft", "Unique"): _COUNTS,
}
"""Operators that mix rows for some values only, so that a trial with random values may not see it.
"""


class CannotBatch(FailedPrecondition):
    """Requests to a network cannot run together.

    Attributes:
        layers: the names of the layers that prevent it. Empty if the reason is not a layer.
    """

    def __init__(self, why: str, layers: Iterable[str] = ()) -> None:
        super().__init__(
            f"requests to this network cannot run together: {why}; load it without BATCH",
            field="device",
        )
        self.layers = tuple(layers)


def check_ports(network: Network | ExecutableNetwork) -> None:
    """
    Raises:
        CannotBatch: an input or output cannot have the batch as its first dimension.
    """
    if not network.inputs:
        raise CannotBatch("it has no inputs")
    firsts = {_first(port) for port in network.inputs}
    for port in network.outputs:
        if port.kind != "tensor" or port.optional:
            raise CannotBatch(f"output {port.name!r} is not a tensor")
    if len({first for first in firsts if isinstance(first, str)}) > 1:
        named = ", ".join(f"{port.name!r} {_first(port) or '?'}" for port in network.inputs)
        raise CannotBatch(f"its inputs do not share a first dimension: {named}")
    for port in network.inputs:
        for size in (port.shape or ())[1:]:
            if isinstance(size, str) and size in firsts:  # so more rows make it longer
                raise CannotBatch(f"another dimension of input {port.name!r} is {size} as well")


def check_layers(network: Network) -> None:
    """
    Raises:
        CannotBatch: a layer mixes rows by their values. The message says which.
    """
    opset = network.model.opset_imports.get("", 0)
    graphs: list[ir.Graph | ir.Function] = [network.model.graph, *network.model.functions.values()]
    for node in (node for graph in graphs for node in naming.walk(graph)):
        if why := _mixes(node, opset):
            raise _at(node, why)
    if (decides := _deciding(network.model.graph)) is not None:
        raise _at(decides, "all rows together decide what it runs")


def check_shared(network: Network, shared: Iterable[str]) -> None:
    """
    Args:
        shared: the outputs that have no batch dimension.

    Raises:
        CannotBatch: one of them follows from what is in the rows: that it was the same for the rows
            of a trial was chance.
    """
    follows = _following(network.model.graph)
    by_name = {value.name: value for value in network.model.graph.outputs}
    for name in sorted(shared):
        if by_name.get(name) in follows:
            raise CannotBatch(
                f"output {name!r} has no batch dimension, and follows from what is in all rows"
            )


def _at(node: ir.Node, why: str) -> CannotBatch:
    return CannotBatch(f"layer {node.name!r} ({node.op_type}): {why}", [node.name or ""])


def _first(port: Port) -> str | None:
    """The name of an input's first dimension.

    Raises:
        CannotBatch: that dimension cannot be the batch's.
    """
    if port.kind != "tensor" or port.optional:
        raise CannotBatch(f"input {port.name!r} is not a tensor, or may be absent")
    if not port.shape:
        raise CannotBatch(f"input {port.name!r} has no first dimension that could be the batch's")
    first = port.shape[0]
    if isinstance(first, int):
        remedy = "; its author can say by max_batch_size that it is a batch's" if first == 1 else ""
        raise CannotBatch(f"the first dimension of input {port.name!r} is fixed at {first}{remedy}")
    return first


def _mixes(node: ir.Node, opset: int) -> str:
    """Why the operator mixes rows by their values. Empty if it does not."""
    if node.op_type == "BatchNormalization" and node.domain == "":
        mode = node.attributes.get("training_mode")
        trains = mode.as_int() != 0 if mode is not None else opset < 14 and len(node.outputs) > 1
        return "it normalizes over all rows" if trains else ""
    return _BY_VALUES.get((node.domain, node.op_type), "")


def _deciding(graph: ir.Graph) -> ir.Node | None:
    """A branch or loop whose condition follows from what is in the rows, if there is one."""
    return _walk(graph, _of_rows(graph))


def _following(graph: ir.Graph) -> set[ir.Value]:
    """The values that follow from what is in the rows, and not from their sizes alone."""
    follows = _of_rows(graph)
    _walk(graph, follows)
    return follows


def _of_rows(graph: ir.Graph) -> set[ir.Value]:
    return {value for value in graph.inputs if value.name not in graph.initializers}


def _walk(graph: ir.Graph, follows: set[ir.Value]) -> ir.Node | None:
    """
    Args:
        follows: the values that follow from what is in the rows. Those of the graph are added.
    """
    for node in graph:
        bodies = [body for _, body in naming.bodies(node)]
        used = [
            *node.inputs,
            *(v for body in bodies for each in naming.walk(body) for v in each.inputs),
        ]
        reads = any(value in follows for value in used if value is not None)
        for body in bodies:
            first = (
                2 if node.op_type == "Loop" else 0
            )  # the number and the condition are the loop's
            if reads:
                follows.update(body.inputs[first:])
            if (found := _walk(body, follows)) is not None:
                return found
        decides = {"If": node.inputs[:1], "Loop": node.inputs[:2]}.get(node.op_type, ())
        if node.op_type == "Loop":
            decides = (*decides, *(body.outputs[0] for body in bodies))
        if any(value in follows for value in decides if value is not None):
            return node
        if reads and node.op_type not in ("Shape", "Size"):
            follows.update(node.outputs)
    return None
