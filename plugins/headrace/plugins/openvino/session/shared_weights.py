"""Weights that several layers share, in OpenVINO's graph.

The CPU plugin of OpenVINO 2026.4 keeps the weights that it has packed for a kernel, and finds them
by the memory of the constant and by their size. So a layer that reads a square matrix as it is and
one that reads it transposed get the same packed weights, and one of them computes a wrong result.
No case shows it. So each way to read such a constant gets a constant of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from headrace.plugins.openvino.graph.empty_tensors import bodies
from headrace.plugins.openvino.library import openvino, operations

_Path: TypeAlias = list[tuple[openvino.Node, int]]
"""The operations between weights and a constant, each with the input that the weights pass."""
_PACKING: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "Convolution": (1,),
        "ConvolutionBackpropData": (1,),
        "Einsum": (0, 1, 2),
        "GroupConvolution": (1,),
        "GroupConvolutionBackpropData": (1,),
        "MatMul": (1,),
    }
)
"""Operations that pack weights, and the inputs which these may be."""
_PASSING: Final[Mapping[str, Callable[..., openvino.Node]]] = MappingProxyType(
    {
        "Convert": operations.convert,
        "Multiply": operations.multiply,
        "Reshape": operations.reshape,
        "Squeeze": operations.squeeze,
        "Subtract": operations.subtract,
        "Transpose": operations.transpose,
        "Unsqueeze": operations.unsqueeze,
    }
)
"""Operations that may stand between a constant and those that pack it."""
_RESHAPING: Final = ("Reshape", "Squeeze", "Unsqueeze")


def separate_weights(model: openvino.Model) -> None:
    """Changes the model in place, and its bodies, which may share constants with it."""
    first: dict[str, str] = {}
    made: dict[tuple[str, str], openvino.Output] = {}
    for port in list(_packed(model)):
        path, constant = _origin(port)
        if constant is None or not _is_ambiguous(path, constant):
            continue
        name, way = constant.get_name(), _way(port, path)
        if first.setdefault(name, way) == way:
            continue
        if (name, way) not in made:
            copy = openvino.op.Constant(constant.get_tensor_view(), shared_memory=False)
            made[name, way] = copy.output(0)
        port.replace_source_output(_along(path, made[name, way]))


def _packed(model: openvino.Model) -> Iterator[openvino.Input]:
    """The inputs that may be packed weights."""
    for operation in model.get_ordered_ops():
        for body in bodies(operation):
            yield from _packed(body)
        for index in _PACKING.get(operation.get_type_name(), ()):
            if index < operation.get_input_size():
                yield operation.input(index)


def _origin(port: openvino.Input) -> tuple[_Path, openvino.Node | None]:
    """The path of the weights that the port reads, from its end, and the constant that they are.
    None if they are not constant."""
    path: _Path = []
    operation = port.get_source_output().get_node()
    while operation.get_type_name() in _PASSING:
        index = 0
        if operation.get_type_name() in ("Multiply", "Subtract"):  # the scale may stand first
            shape = operation.get_output_partial_shape(0)
            index = int(operation.get_input_partial_shape(0) != shape)
        path.append((operation, index))
        operation = operation.input_value(index).get_node()
    return path, operation if operation.get_type_name() == "Constant" else None


def _is_ambiguous(path: _Path, constant: openvino.Node) -> bool:
    """Whether weights that are read in two ways may have the same sizes in both."""
    sizes = [size for size in constant.shape if size > 1]
    reshaped = any(each.get_type_name() in _RESHAPING for each, _ in path)
    return len(sizes) > 1 and (reshaped or len(set(sizes)) < len(sizes))


def _way(port: openvino.Input, path: _Path) -> str:
    """Names the way in which the constant is read. The name is different if the packed weights
    may be."""
    operation = port.get_node()
    attributes = operation.get_attributes()
    kept = [attributes.get(each) for each in ("transpose_a", "transpose_b", "equation")]
    between = [(each.get_type_name(), str(each.get_output_partial_shape(0))) for each, _ in path]
    return repr((operation.get_type_name(), port.get_index(), kept, between))


def _along(path: _Path, value: openvino.Output) -> openvino.Output:
    """The value behind operations as those of the path."""
    for operation, index in reversed(path):
        kind = operation.get_type_name()
        inputs = operation.input_values()
        inputs[index] = value
        if kind == "Convert":
            inputs.append(operation.get_output_element_type(0).to_string())
        if kind == "Reshape":
            inputs.append(operation.get_attributes()["special_zero"])
        copy = _PASSING[kind](*inputs)
        copy.set_friendly_name(operation.get_friendly_name())  # for profiles
        value = copy.output(0)
    return value
