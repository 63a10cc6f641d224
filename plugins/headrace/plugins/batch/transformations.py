"""Rewrites a network so that it takes any number of rows, if that is possible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.batch.analysis.analysis import Analysis, analyse
from headrace.plugins.batch.analysis.axes import Mixes, constant_of, moved
from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.intake import naming
from headrace.runtime.network.network import Network, Port

_BATCH: Final = "headrace_batch"


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


@dataclass(frozen=True, slots=True)
class Batchable:
    """A network with a batch dimension of any size.

    Attributes:
        rewritten: the original network takes one row only.
    """

    network: Network
    analysis: Analysis
    rewritten: bool

    @property
    def is_certain(self) -> bool:
        """Whether the graph alone shows that rows are independent, so that no trial is needed."""
        return not (self.analysis.doubts or self.rewritten)


def batchable(network: Network) -> Batchable:
    """The network with a batch dimension of any size.

    Raises:
        CannotBatch: its requests cannot run together. The message says why.
    """
    rewritten = _has_one_row(network)
    if rewritten:
        network = _with_any_number_of_rows(network)
    analysis = analyse(network.model)
    if analysis.mixes:
        raise CannotBatch(analysis.mixes, filter(None, [analysis.mixing]))
    return Batchable(network, analysis, rewritten)


def with_fixed_rows(network: Network, rows: int) -> Network:
    """The network for exactly `rows` rows, for devices that take fixed sizes only."""
    model = network.clone().model
    _set_rows(model, rows)
    return Network(model)


def _has_one_row(network: Network) -> bool:
    """Whether the first dimension of every input is fixed at 1. False if it may have any size.

    Raises:
        CannotBatch: neither is the case.
    """
    if not network.inputs:
        raise CannotBatch("it has no inputs")
    firsts = {_first(port) for port in network.inputs}
    for port in network.outputs:
        if port.kind != "tensor" or port.optional:
            raise CannotBatch(f"output {port.name!r} is not a tensor")
    symbols = {first for first in firsts if isinstance(first, str)}
    if len(symbols) > 1 or (1 in firsts and len(firsts) > 1):
        named = ", ".join(f"{port.name!r} {_first(port) or '?'}" for port in network.inputs)
        raise CannotBatch(f"its inputs do not share a first dimension: {named}")
    return firsts == {1}


def _first(port: Port) -> int | str | None:
    """The size of an input's first dimension.

    Raises:
        CannotBatch: that dimension cannot be the batch's.
    """
    if port.kind != "tensor" or port.optional:
        raise CannotBatch(f"input {port.name!r} is not a tensor, or may be absent")
    if not port.shape:
        raise CannotBatch(f"input {port.name!r} has no first dimension that could be the batch's")
    first = port.shape[0]
    if isinstance(first, int) and first != 1:
        raise CannotBatch(f"the first dimension of input {port.name!r} is fixed at {first}")
    return first


def _with_any_number_of_rows(network: Network) -> Network:
    """Replaces the fixed batch size of 1 in the graph: in the shapes of inputs, outputs and
    Reshapes."""
    one = analyse(network.model, rows=(1,))
    model = network.clone().model
    names = naming.value_names(model)
    alone = all(isinstance(size, int) for port in network.inputs for size in port.shape or ())
    for node in model.graph:
        if node.op_type == "Reshape" and node.domain == "":
            _resize(node, one, names, model.graph, all_fixed=alone)
    _set_rows(model, _BATCH)
    return Network(model)


def _set_rows(model: ir.Model, rows: int | str) -> None:
    graph = model.graph
    for value in graph.inputs:
        if value.name not in graph.initializers and value.shape is not None:
            value.shape = ir.Shape([rows, *list(value.shape)[1:]])
    for node in graph:
        for value in node.outputs:
            value.shape = None


def _resize(
    node: ir.Node, one: Analysis, names: naming.Names, graph: ir.Graph, *, all_fixed: bool
) -> None:
    """Makes a Reshape keep the batch if its constant shape says that the batch has size 1."""
    source, shape = node.inputs[0], node.inputs[1]
    tensor = constant_of(shape) if shape is not None else None
    axis = one.axes.get(source.name or "") if source is not None else None
    before = one.shapes.get(source.name or "") if source is not None else None
    after = one.shapes.get(node.outputs[0].name or "")
    if tensor is None or axis is None or before is None or after is None:
        return
    try:
        where = moved(before, axis, after)
    except Mixes:
        return
    wanted = [int(size) for size in np.ravel(tensor.numpy())]
    literal = "allowzero" in node.attributes and node.attributes["allowzero"].as_int() == 1
    elsewhere = [at for at, size in enumerate(wanted) if at != where and size == -1]
    copied = [] if literal else [axis] if axis != where and wanted[axis : axis + 1] == [0] else []
    if where == axis and before[axis] == after[where] and not literal:
        wanted[where] = 0
    elif all_fixed or not (elsewhere or copied):
        for at in (*elsewhere, *copied):
            wanted[at] = after[at]
        wanted[where] = -1
    else:
        return
    value = ir.Value(
        name=names.fresh(f"{node.name}/shape"),
        const_value=ir.tensor(np.array(wanted, np.int64)),
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([len(wanted)]),
    )
    assert value.const_value is not None
    value.const_value.name = value.name
    graph.register_initializer(value)
    node.replace_input_with(1, value)
