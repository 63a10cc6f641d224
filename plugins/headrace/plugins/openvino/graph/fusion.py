"""Which layers the operations of an OpenVINO graph stand for.

OpenVINO keeps the names of ONNX's *values* on the tensors of its graph, while an operation's own
name may be that of a node, of an output or made up. So operations are found from values: what lies
between a layer's outputs and the outputs of earlier layers came from that layer. It is then named
after it, and the compiler, which lists the names of all that it fused, tells layers.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

import onnx_ir as ir

from headrace.plugins.openvino.library import openvino

_SEPARATOR: Final = "~"  # before the number of an operation within its layer
_FUSED: Final = "originalLayersNames"
_NOT_COMPUTED: Final = frozenset({"Parameter", "Result", "Constant"})


def name_operations(model: openvino.Model, graph: ir.Graph) -> None:
    """Names each operation of a graph, but not those in bodies, after its layer of `graph`."""
    producers = {
        name: port.get_node()
        for operation in model.get_ops()
        if operation.get_type_name() != "Result"  # which bears the names of what it takes
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


# What may stand in a name as it is: all that is printed, but our separator, the compiler's and %.
_SAFE: Final = "".join(
    chr(code) for code in range(0x21, 0x7F) if chr(code) not in (_SEPARATOR, ",", "%")
)


def layer_of(name: str) -> str:
    """The layer that `name_operations` named an operation after."""
    return unquote(name.rpartition(_SEPARATOR)[0] or name)


def fused_layers(operation: openvino.Node) -> list[str]:
    """The layers that an operation of a compiled graph was made of, and perhaps names that are
    none, each once."""
    info = operation.get_rt_info()
    fused = info[_FUSED].astype(str) if _FUSED in info else ""
    return list(dict.fromkeys(layer_of(name) for name in fused.split(",") if name))
