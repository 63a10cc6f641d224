"""Transformations that suit every device. They reduce the work and change no result.

onnx-ir has passes of the same names, not used here. Its identity elimination lets a body
return an outer graph's value, which ONNX forbids, and merges two outputs of a network into one. Its
elimination of common subexpressions and duplicate initialisers compares strings by the addresses of
their characters.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from headrace.runtime.intake.naming import graphs, walk
from headrace.runtime.system.interruption import wanted

_SMALL_BYTES = 1024


def eliminate_identity(model: ir.Model) -> bool:
    """Removes each Identity whose readers can read its input instead.

    An Identity that gives a graph output its name stays, unless its input can take that name.
    """
    modified = False
    for node in wanted(list(walk(model.graph))):
        modified |= _pass_through(node)
    return modified


def _pass_through(node: ir.Node) -> bool:
    if node.op_type != "Identity" or node.domain != "" or len(node.inputs) != 1:
        return False
    source, result, graph = node.inputs[0], node.outputs[0], node.graph
    if source is None or graph is None:
        return False
    if result.is_graph_output():
        producer = source.producer()
        if producer is None or producer.graph is not graph or source.is_graph_output():
            return False
        if sum(output is result for output in graph.outputs) != 1:
            return False
    _complete(source, result)
    name = result.name
    named_output = result.is_graph_output()
    result.replace_all_uses_with(source, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    if named_output:
        source.name = name
    return True


def _complete(source: ir.Value, result: ir.Value) -> None:
    """Keeps what is known about the value that is removed."""
    if source.type is None:
        source.type = result.type
    if source.shape is None or (result.is_graph_output() and result.shape is not None):
        source.shape = result.shape
    if result.is_graph_output():
        source.metadata_props.update(result.metadata_props)


def remove_unused(model: ir.Model) -> bool:
    """Removes nodes and initialisers that no output depends on."""
    return bool(RemoveUnusedNodesPass()(model).modified)


def deduplicate_initializers(model: ir.Model) -> bool:
    """Merges equal small initialisers of one graph. Large ones are seldom equal by chance."""
    modified = False
    for graph in list(graphs(model)):
        kept: dict[tuple[object, ...], ir.Value] = {}
        for name, value in wanted(list(graph.initializers.items())):
            tensor = value.const_value
            if tensor is None or value.is_graph_input() or value.is_graph_output():
                continue
            if tensor.dtype.is_string() or tensor.nbytes > _SMALL_BYTES:
                continue
            key = (tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes())
            if key in kept:
                value.replace_all_uses_with(kept[key])
                del graph.initializers[name]
                modified = True
            else:
                kept[key] = value
    return modified


def simplify(model: ir.Model) -> bool:
    """Runs all these passes. The order lets each pass work on the result of the one before."""
    modified = [eliminate_identity(model), deduplicate_initializers(model), remove_unused(model)]
    return any(modified)
