"""Gives a network another number of rows."""

from __future__ import annotations

import onnx_ir as ir

from headrace.runtime.network.network import Network


def with_rows(network: Network, rows: int | str, *, outputs: bool = False) -> Network:
    """A copy whose inputs have the first dimension `rows`. The shapes of all values that it
    computes have to be inferred again.

    Args:
        rows: a number, or a name for any number.
        outputs: whether the outputs have the same first dimension. If not, their shapes are not
            known.
    """
    model = network.clone().model
    graph = model.graph
    declared = [value.shape for value in graph.outputs]
    for value in graph.inputs:
        if value.name not in graph.initializers and value.shape is not None:
            value.shape = ir.Shape([rows, *list(value.shape)[1:]])
    for node in graph:
        for value in node.outputs:
            value.shape = None
    for value, shape in zip(graph.outputs, declared, strict=True):
        if outputs and shape is not None:
            value.shape = ir.Shape([rows, *list(shape)[1:]])
    return Network(model)
