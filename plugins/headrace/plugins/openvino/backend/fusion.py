"""Finds the layers that the operations of an OpenVINO graph came from.

OpenVINO keeps the names of ONNX's *values* on the tensors of its graph. An operation's own name may
be the name of a node, the name of an output, or a generated name. So operations are found from
values: the operations between a layer's outputs and the outputs of earlier layers came from that
layer. Each operation is named after its layer. The compiler lists the names of the operations that
it fused, and these names then tell the layers.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

import onnx_ir as ir

from headrace.plugins.openvino.library import openvino

_SEPARATOR: Final = "~"  # stands before the number of an operation within its layer
_FUSED: Final = "originalLayersNames"
_NOT_COMPUTED: Final = frozenset({"Parameter", "Result", "Constant"})


def name_operations(model: openvino.Model, graph: ir.Graph) -> None:
    """Names each operation of `model` after its layer in `graph`. Leaves bodies out."""
    producers = {
        name: port.get_node()
        for operation in model.get_ops()
        if operation.get_type_name() != "Result"  # a Result has the names of its input
        for port in operation.outputs()
        for name in port.get_names()
    }
    owned: set[str] = {
        operation.get_name()
        for operation in model.get_ops()
        if operation.get_type_name() in _NOT_COMPUTED
    }
    for node in graph:
        stack = [producers[value.name] for value in node.outputs if value.name in producers]
        layer = quote(node.name or "", safe=_SAFE)
        count = 0
        while stack:
            operation = stack.pop()
            if operation.get_name() in owned:
                continue
            owned.add(operation.get_name())
            operation.set_friendly_name(f"{layer}{_SEPARATOR}{count}" if count else layer)
            count += 1
            stack += [port.get_source_output().get_node() for port in operation.inputs()]


# Characters that a name keeps: all printable ones except our separator, the compiler's and %.
_SAFE: Final = "".join(
    chr(code) for code in range(0x21, 0x7F) if chr(code) not in (_SEPARATOR, ",", "%")
)


def layer_of(name: str) -> str:
    """The layer that `name_operations` named an operation after."""
    return unquote(name.rpartition(_SEPARATOR)[0] or name)


def fused_layers(operation: openvino.Node) -> list[str]:
    """The layers that an operation of a compiled graph was made from, each once. The list may also
    hold names that are not names of layers."""
    info = operation.get_rt_info()
    fused = info[_FUSED].astype(str) if _FUSED in info else ""
    return list(dict.fromkeys(layer_of(name) for name in fused.split(",") if name))
