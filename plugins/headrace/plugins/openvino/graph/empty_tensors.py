"""Tensors without elements, in OpenVINO's graph.

OpenVINO does not run an operation that has an input without elements. This is right if the output
has no elements either. If the output has elements, nothing writes them, and a caller would read
old contents of that memory. Some kernels handle this case themselves: `_SOUND`. When a network is
compiled, OpenVINO also computes constant results, and writes outside of a tensor that has no
elements.

So an output that never has elements becomes a constant, which nothing computes. A layer that makes
elements of none is refused. So is arithmetic with a constant without elements: the compiler reads a
first element there, and ends the process. Other layers depend on the request. `axes_to_guard` asks
OpenVINO's own inference of shapes about them, and `guards` checks them in each run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from headrace.plugins.openvino.failures import NATIVE
from headrace.plugins.openvino.library import openvino, operations
from headrace.runtime.errors import InvalidModel

ARITHMETIC: Final = frozenset(
    [
        *("Add", "Divide", "FloorMod", "Maximum", "Minimum", "Mod", "Multiply", "Power"),
        *("SquaredDifference", "Subtract"),
    ]
)
_BODIES: Final = ("If", "Loop", "TensorIterator")
_SOUND: Final = frozenset(
    {
        "Broadcast",  # an empty axis stays empty, or does not fit
        "Concat",
        "ConvertLike",  # it reads only the type of its other input
        "Einsum",
        "MatMul",
        "NonMaxSuppression",
        "NonZero",
        "ReduceL1",
        "ReduceL2",
        "ReduceProd",
        "ReduceSum",
        "ScatterElementsUpdate",
        "ScatterNDUpdate",
        "ShapeOf",
        "Tile",
        "Unique",  # `repairs` adds an element
        "VariadicSplit",
    }
)
"""Operations that are right with an empty input. ``graph/test_empty_tensors.py`` runs each of them.
ReduceMean is not among them: it gives 0, and ONNX says NaN."""
_SOUND_OF_FLOATS: Final = ("ReduceMax", "ReduceMin")
"""Operations that are right for floats only. The extreme of no floats is infinite (`repairs`). The
extreme of no integers is another number."""
_INDEXED: Final = ("Gather", "GatherND")
"""Operations with indices. `guards` checks each index against the size of its axis, which may be
0."""
_PADDING: Final = ("Pool", "Convolution", "ConvolutionBackpropData")
"""Ends of the types of operations that have pads themselves."""
_NOT_EMPTY: Final = openvino.Dimension(1, -1)


def fold_empty(model: openvino.Model) -> None:
    """Replaces outputs that never have elements by constants, in bodies too.

    Raises:
        InvalidModel: an operation would make elements of none, or compute with a constant without
            elements.
    """
    _fold_empty(model, ("Constant",))


def _fold_empty(model: openvino.Model, known: Sequence[str]) -> None:
    """
    Args:
        known: the types of the operations whose values may be constants when OpenVINO compiles the
            model.
    """
    constant: set[str] = set()  # names of operations that a constant leaves without elements
    for operation in model.get_ordered_ops():
        kind = operation.get_type_name()
        for body in bodies(operation):
            _fold_empty(body, ("Constant", "Parameter"))  # it may become a part of this model
        if kind in ("Parameter", "Constant", "Result"):
            continue
        for output in operation.outputs():
            _fold(output)
        if kind in _BODIES:
            continue
        empty = [each for each in _data(operation) if is_empty(each.get_partial_shape())]
        if not empty or not _is_read(operation):
            continue
        if _returns_elements(operation) and not _is_sound(operation):
            raise InvalidModel(f"{kind} would return elements for an empty tensor", field="model")
        makers = (each.get_source_output().get_node() for each in empty)
        if any(each.get_type_name() in known or each.get_name() in constant for each in makers):
            if kind in ARITHMETIC:
                raise InvalidModel(f"{kind} with a constant without elements", field="model")
            constant.add(operation.get_name())


def bodies(operation: openvino.Node) -> list[openvino.Model]:
    """The graphs inside an operation."""
    kind = operation.get_type_name()
    if kind == "If":
        return [operation.get_then_body(), operation.get_else_body()]
    return [operation.get_function()] if kind in _BODIES else []


def is_empty(shape: openvino.PartialShape) -> bool:
    """Whether a tensor of this shape never has elements."""
    return shape.rank.is_static and 0 in shape.get_max_shape()


def never_empty(value: openvino.Output, axes: Sequence[int]) -> openvino.Output:
    """The value. It gets one element along each of the axes along which it has none."""
    rank = len(value.get_partial_shape())
    along = np.zeros(rank, np.int64)
    along[axes] = 1
    sizes = operations.shape_of(value)
    missing = operations.maximum(operations.subtract(np.int64(1), sizes), np.int64(0))
    nothing = operations.constant(np.zeros(rank, np.int64))
    zero = operations.constant(0, value.get_element_type())
    added = operations.multiply(missing, along)
    return operations.pad(value, nothing, added, "constant", zero).output(0)


def flattened(operation: openvino.Node) -> openvino.Node | None:
    """Gives a Flatten the sizes of both axes, under the rules of `repairs`. The reader gives the
    first one and leaves the second one to the number of elements, which is 0 for any second one if
    there are none. It also has a first size of 0 replaced by that of the input. No case shows
    it."""
    data, sizes = operation.input_values()
    parts = sizes.get_node().input_values()
    if sizes.get_node().get_type_name() != "Concat" or len(parts) != 2:
        return None
    product = parts[0].get_node()
    if product.get_type_name() != "ReduceProd":
        return None
    part = product.input_value(0).get_node()
    if part.get_type_name() != "StridedSlice":  # which the reader makes for Flatten alone
        return None
    whole, end = part.input_value(0), part.input_value(2)
    rest = operations.slice(whole, end, np.array([2**31 - 1]), np.array([1]), np.array([0]))
    both = [parts[0], operations.reduce_prod(rest, np.array([0]), True).output(0)]
    return operations.reshape(data, operations.concat(both, 0), special_zero=False)


def axes_to_guard(operation: openvino.Node) -> Iterator[tuple[openvino.Output, list[int]]]:
    """The inputs that make the operation's result unsound if they have no elements, and the axes
    that this depends on."""
    kind = operation.get_type_name()
    if kind in ("Result", *_BODIES, *_INDEXED) or _is_sound(operation):
        return
    for port in _data(operation):
        axes = _axes(port.get_partial_shape())
        if axes is None or axes:
            found = axes and [axis for axis in axes if _is_unsound(operation, port, axis)]
            if found is None or found:
                yield port.get_source_output(), found or []


def _fold(output: openvino.Output) -> None:
    shape = output.get_partial_shape()
    if shape.is_dynamic or not is_empty(shape) or not output.get_target_inputs():
        return
    zeros = np.zeros(shape.to_shape(), np.uint8)
    constant = operations.constant(zeros, output.get_element_type())
    names = output.get_names()
    output.set_names(set())
    constant.output(0).set_names(names)
    for reader in output.get_target_inputs():
        reader.replace_source_output(constant.output(0))


def _is_read(operation: openvino.Node) -> bool:
    return any(output.get_target_inputs() for output in operation.outputs())


def _returns_elements(operation: openvino.Node) -> bool:
    return any(
        output.get_target_inputs() and not is_empty(output.get_partial_shape())
        for output in operation.outputs()
    )


def _data(operation: openvino.Node) -> list[openvino.Input]:
    """The operation's inputs without the pattern of a Reshape, which is empty for a scalar."""
    ports: list[openvino.Input] = operation.inputs()
    return ports[:1] if operation.get_type_name() == "Reshape" else ports


def _is_sound(operation: openvino.Node) -> bool:
    kind = operation.get_type_name()
    if kind in _SOUND_OF_FLOATS:
        return bool(operation.get_output_element_type(0).is_real())
    if kind == "Reshape":  # OpenVINO compares shape and elements in a run, but not before
        ends = operation.get_input_partial_shape(0), operation.get_output_partial_shape(0)
        return any(shape.is_dynamic for shape in ends)
    if kind == "Pad":  # the compiler may leave it to the operation that reads it
        readers = (
            port.get_node() for output in operation.outputs() for port in output.get_target_inputs()
        )
        return not any(reader.get_type_name().endswith(_PADDING) for reader in readers)
    if kind == "Tile":  # it does not run without repeats
        return not is_empty(operation.get_input_partial_shape(1))
    return kind in _SOUND


def _axes(shape: openvino.PartialShape) -> list[int] | None:
    """The axes that may be empty in a run; None if any axis may. OpenVINO's least size of a
    convolution's output is 1 or more, although the output of a small image has no elements. So the
    least size of an axis is not used here."""
    if shape.is_static:
        return []
    if shape.rank.is_dynamic:
        return None
    return [at for at, size in enumerate(shape) if size.is_dynamic]


def _is_unsound(operation: openvino.Node, port: openvino.Input, axis: int) -> bool:
    """Whether an output may have elements if this axis, and no other one, is empty. If OpenVINO
    refuses the operation with this axis empty, it refuses the operation in a run too."""
    source = port.get_source_output()
    sizes = list(source.get_partial_shape())
    assumed = [_NOT_EMPTY if size.is_dynamic else size for size in sizes]
    assumed[axis] = openvino.Dimension(0)
    stand_in = openvino.op.Parameter(source.get_element_type(), openvino.PartialShape(assumed))
    port.replace_source_output(stand_in.output(0))
    try:
        operation.validate_and_infer_types()
        return _returns_elements(operation)
    except NATIVE:
        return False
    finally:
        port.replace_source_output(source)
        operation.validate_and_infer_types()
