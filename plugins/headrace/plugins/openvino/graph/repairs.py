"""Repairs operations that OpenVINO's reader of ONNX makes with another meaning than ONNX gives.

Each repair is small and exact. A layer that would need a larger repair is refused (`limits`). Each
repair names the case of onnx's backend tests that shows its purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from headrace.plugins.openvino.graph.activations import ACTIVATIONS
from headrace.plugins.openvino.graph.empty_tensors import bodies, flattened
from headrace.plugins.openvino.graph.loops import LOOPS
from headrace.plugins.openvino.graph.magnitudes import magnitude
from headrace.plugins.openvino.graph.narrow import NARROW, narrowed
from headrace.plugins.openvino.graph.patterns import REDUCTIONS
from headrace.plugins.openvino.graph.quantizing import quantisation
from headrace.plugins.openvino.graph.sequences import SEQUENCES
from headrace.plugins.openvino.graph.unique import unique
from headrace.plugins.openvino.library import (
    change_readers,
    openvino,
    operations,
    replace_node,
)

_LEAST_STEP: Final = -(2**31) + 1
_BYTES: Final = (openvino.Type.i8, openvino.Type.u8)
_SMALL: Final = (*_BYTES, openvino.Type.i16, openvino.Type.u16)
_WIDE: Final = (openvino.Type.i32, openvino.Type.u32, openvino.Type.i64, openvino.Type.u64)
_FLOATS: Final = (openvino.Type.f32, openvino.Type.f16, openvino.Type.bf16)


def _truncated(number: openvino.Node, divisor: openvino.Node) -> openvino.Node:
    quotient = operations.divide(number, divisor)
    quotient.set_attribute("m_pythondiv", False)
    return quotient


_ARITHMETIC: Final[Mapping[str, Callable[..., openvino.Node]]] = MappingProxyType(
    {
        "Abs": magnitude,
        "Add": operations.add,
        "BitwiseNot": operations.bitwise_not,
        "Divide": _truncated,
        "Multiply": operations.multiply,
        "Negative": operations.negative,
        "Subtract": operations.subtract,
    }
)

_BIASED: Final = "/WithoutBiases"
"""The end of the name that the reader gives to the product in a Gemm with a bias."""


def repair(model: openvino.Model) -> None:
    """Changes the model and its bodies in place."""
    for operation in model.get_ops():
        for body in bodies(operation):
            repair(body)
        change = _REPAIRS.get(operation.get_type_name())
        made = change(operation) if change is not None else None
        if made is not None:
            made.output(0).set_names(operation.output(0).get_names())
            replace_node(operation, made)


def _top_k(operation: openvino.Node) -> None:
    """ONNX takes equal elements of lower index first: test_top_k_same_values. If the count is
    larger than the number of elements, the kernel reads beyond them and crashes, so it gets that
    number. If the count is 0, the kernel refuses it, so one element is taken and cut away."""
    attributes = operation.get_attributes()
    if attributes["sort"] != "index":
        operation.set_attribute("sort", "value")
        operation.set_attribute("stable", True)
    axis = np.int64(attributes["axis"])
    sizes = operations.shape_of(operation.input_value(0))
    there = operations.gather(sizes, axis, np.int64(0))
    count = operations.convert(operation.input_value(1), "i64")
    some = operations.minimum(count, there)
    if operation.input_value(1).get_node().get_type_name() != "Constant":
        for output in operation.outputs():
            _cut(output, some, axis)
        some = operations.minimum(operations.maximum(count, np.int64(1)), there)
    operation.input(1).replace_source_output(some.output(0))


def _cut(output: openvino.Output, count: openvino.Node, axis: np.int64) -> None:
    """Gives the readers of `output` only its first `count` elements along an axis."""
    end = operations.unsqueeze(count, np.int64(0))
    begin, step, axes = (operations.constant(np.array([each])) for each in (0, 1, axis))
    change_readers(output, lambda whole: operations.slice(whole, begin, end, step, axes))


def _extreme(operation: openvino.Node) -> openvino.Node | None:
    """The extreme of no elements, or of infinities alone, is infinite. The kernel starts from the
    largest finite number and stays there: test_reduce_max_empty_set,
    test_attention_23_fullymasked_qk_matmul_output_mode3_zero_expanded.

    So the kernel also computes the extreme of the halves of all elements, which is beyond the
    halves of all finite numbers, on the side where it starts, only if none of them is another.
    """
    kind = operation.output(0).get_element_type()
    if kind not in _FLOATS:
        return None
    data, axes = operation.input_value(0), operation.input_value(1)
    keeps = operation.get_attributes()["keep_dims"]
    largest = operation.get_type_name() == "ReduceMax"
    reduce = operations.reduce_max if largest else operations.reduce_min
    halves = operations.multiply(operations.convert(data, "f32"), np.float32(0.5))
    extreme, end = reduce(halves, axes, keeps), np.float32(0.75) * np.finfo(np.float32).max
    beyond = operations.less(extreme, -end) if largest else operations.greater(extreme, end)
    infinity = operations.constant(-np.inf if largest else np.inf, kind)
    return operations.select(beyond, infinity, reduce(data, axes, keeps))


def _bounded(operation: openvino.Node) -> None:
    """The compiler joins a maximum and a minimum, each with a constant, and computes them in
    float32: then the Clip of 16777217 at 16777217 is 16777216. No case shows it. It joins only an
    operation that has one reader, so the result is compared with itself, in the same kernel."""
    if operation.get_output_element_type(0) in _WIDE:
        largest = operation.get_type_name() == "Maximum"
        extreme = operations.maximum if largest else operations.minimum
        change_readers(operation.output(0), lambda found: extreme(found, found))


def _suppression(operation: openvino.Node) -> openvino.Node | None:
    """ONNX suppresses boxes that overlap by more than the threshold. The kernel also suppresses
    boxes that overlap by exactly the threshold: test_nonmaxsuppression_iou_threshold_boundary. So
    the kernel gets the next larger number. With a count below zero, the kernel gives the next
    request a wrong answer, so the count is at least 0. No case shows it."""
    if operation.get_input_size() > 2:
        count = operation.input_value(2)
        bounded = operations.maximum(count, operations.constant(0, count.get_element_type()))
        operation.input(2).replace_source_output(bounded.output(0))
    if operation.get_input_size() < 4:
        return None
    threshold = operations.convert(operation.input_value(3), "f32")
    next_larger = operations.maximum(
        operations.multiply(threshold, np.float32(1 + 2**-23)), np.finfo(np.float32).tiny
    )
    operation.input(3).replace_source_output(next_larger.output(0))
    return None


def _slice(operation: openvino.Node) -> None:
    """The least step of 32 bits has no opposite in 32 bits. It ends the process when the network is
    compiled or when it runs. The next larger step picks the same elements: one at most."""
    step = operation.input_value(3)
    kind, known = step.get_element_type().to_dtype(), step.get_node()
    if known.get_type_name() == "Constant":
        if known.data.min(initial=0) > _LEAST_STEP:
            return
        bounded = operations.constant(np.maximum(known.data, kind.type(_LEAST_STEP)))
    else:
        bounded = operations.maximum(step, kind.type(_LEAST_STEP))
    operation.input(3).replace_source_output(bounded.output(0))


def _range(operation: openvino.Node) -> None:
    """A range whose step leads away from its limit is empty. The kernel makes elements for its
    length all the same. No case shows it. Here the limit of such a range becomes its start."""
    kind = operation.output(0).get_element_type()  # a body's counter has another type
    values = (operation.input_value(index) for index in range(3))
    start, limit, step = (operations.convert(value, kind) for value in values)
    zero = operations.constant(0, kind)
    up, down = operations.maximum(limit, start), operations.minimum(limit, start)
    bounded = operations.select(operations.greater(step, zero), up, down)
    operation.input(1).replace_source_output(bounded.output(0))


def _sum(operation: openvino.Node) -> openvino.Node | None:
    """The reader makes Gemm's bias an operand of a sum. There, the bias may be larger than the
    product, which ONNX forbids. No case shows it. So the sum is reshaped to the shape of the
    product. The reshape fails for a sum of another size."""
    product, bias = (operation.input_value(index).get_node() for index in range(2))
    if product.get_type_name() == bias.get_type_name() == "Multiply":
        source = product.input_value(0)
        biased = source.get_node().get_friendly_name().endswith(_BIASED)
        if biased and not _covers(source.get_partial_shape(), bias.get_output_partial_shape(0)):
            sizes = operations.shape_of(source)
            change_readers(
                operation.output(0),
                lambda sum_: operations.reshape(sum_, sizes, special_zero=False),
            )
    return _arithmetic(operation)


def _covers(larger: openvino.PartialShape, shape: openvino.PartialShape) -> bool:
    """Whether a tensor of `shape` is known to broadcast to the shape `larger`."""
    if larger.rank.is_dynamic or shape.rank.is_dynamic or len(shape) > len(larger):
        return False
    pairs = zip(reversed(list(shape)), reversed(list(larger)), strict=False)
    return all(one.is_static and (one == 1 or one == other) for one, other in pairs)


def _arithmetic(operation: openvino.Node) -> openvino.Node | None:
    """In 8 bits the kernels saturate, but ONNX drops the upper bits. If a size is not known, the
    kernels round a quotient to the nearest integer. So 100 + 100 is 127, and 85 / 96 is 1. In 16
    bits the kernels keep the upper bits. No case shows it."""
    kind = operation.get_output_element_type(0)
    if kind not in _SMALL:
        return None
    wide = [operations.convert(value, "i32").output(0) for value in operation.input_values()]
    return narrowed(_ARITHMETIC[operation.get_type_name()](*wide), kind)


def _absolute(operation: openvino.Node) -> openvino.Node | None:
    """See `magnitude`."""
    made = _arithmetic(operation) or magnitude(operation.input_value(0))
    return None if made.get_type_name() == "Abs" else made


def _divide(operation: openvino.Node) -> openvino.Node | None:
    """ONNX drops the fraction of a quotient of integers. The core rounds down when it computes a
    quotient of constants or sizes. No case shows it."""
    if operation.get_output_element_type(0).is_integral():
        operation.set_attribute("m_pythondiv", False)
    return _arithmetic(operation)


def _einstein(operation: openvino.Node) -> openvino.Node | None:
    """In less than 32 bits the kernels saturate, but ONNX drops the upper bits. No case shows
    it."""
    kind = operation.get_output_element_type(0)
    if kind not in _SMALL:
        return None
    wide = [operations.convert(value, "i32") for value in operation.input_values()]
    made = operations.einsum(wide, operation.get_attributes()["equation"])
    return narrowed(made, kind)


def _pad(operation: openvino.Node) -> openvino.Node | None:
    """If the pads are constant and the value is computed, the kernel uses zero instead of the
    value. No case shows it. So the operation pads with zeros, and then each padded element gets the
    value."""
    if operation.get_attributes()["pad_mode"] != "constant" or operation.get_input_size() < 4:
        return None
    data, begin, end, value = (operation.input_value(index) for index in range(4))
    if value.get_node().get_type_name() == "Constant":
        return None
    kind = data.get_element_type()
    one, zero = (operations.constant(each, kind) for each in (1, 0))
    inside = operations.pad(
        operations.broadcast(one, operations.shape_of(data)), begin, end, "constant", zero
    )
    padded = operations.pad(data, begin, end, "constant", zero)
    return operations.select(operations.not_equal(inside, zero), padded, value)


def _regions(operation: openvino.Node) -> None:
    """If each region gets as many points as it needs, an empty region gets none. Then the kernel
    divides by zero, but ONNX gives zero. No case shows it."""
    attributes = operation.get_attributes()
    if attributes["sampling_ratio"] or attributes["aligned_mode"] == "asymmetric":
        return
    scale = np.float32(attributes["spatial_scale"])
    corners = operations.convert(operation.input_value(1), "f32")
    corners = operations.subtract(operations.multiply(corners, scale), np.float32(0.5))
    first, last = operations.split(corners, np.int64(1), 2).outputs()
    along, across = operations.split(operations.greater(last, first), np.int64(1), 2).outputs()
    shown = operations.unsqueeze(operations.logical_and(along, across), np.array([2, 3]))
    zero = operations.constant(0, operation.get_output_element_type(0))
    change_readers(operation.output(0), lambda found: operations.select(shown, found, zero))


_REPAIRS: Final[Mapping[str, Callable[[openvino.Node], openvino.Node | None]]] = MappingProxyType(
    {
        **ACTIVATIONS,
        **LOOPS,
        **NARROW,
        **REDUCTIONS,
        **dict.fromkeys(_ARITHMETIC, _arithmetic),
        "Abs": _absolute,
        "Add": _sum,
        "Divide": _divide,
        "Einsum": _einstein,
        "FakeQuantize": quantisation,
        **SEQUENCES,
        "Maximum": _bounded,
        "Minimum": _bounded,
        "NonMaxSuppression": _suppression,
        "Pad": _pad,
        "ROIAlign": _regions,
        "Range": _range,
        "Reshape": flattened,
        "ReduceMax": _extreme,
        "ReduceMin": _extreme,
        "Slice": _slice,
        "TopK": _top_k,
        "Unique": unique,
    }
)
