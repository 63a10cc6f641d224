"""How the sizes of a layer's outputs follow from those of its inputs, by operator.

The rules are ONNX's, for any set. Where ONNX Runtime deviates, a rule knows nothing. A rule may
take for granted that a run of the layer does not fail: its formulas are true of runs that reach
the layer's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

import onnx_ir as ir

from headrace.runtime.network.ranks import MAX_RANK
from headrace.runtime.network.shapes.formulas import (
    Formulas,
    Unsure,
    copied_if_0,
    divided_up,
    extent,
    minus,
    not_negative,
    positive,
    quotient,
    scaled,
    steps,
)

Shape: TypeAlias = tuple[Unsure, ...]
OutputShapes: TypeAlias = "Sequence[Shape | None] | None"
_END: Final = 2**31 - 1  # a slice that ends there or later ends with the axis


class Known(Protocol):
    """What is known of values."""

    def of(self, value: ir.Value) -> Shape | None: ...
    def elements(self, value: ir.Value) -> Shape | None: ...


class LayerInputs:
    """A layer, with what is known of its inputs."""

    def __init__(self, node: ir.Node, formulas: Formulas, known: Known) -> None:
        self.node = node
        self.formulas = formulas
        self._known = known

    def value(self, index: int) -> ir.Value | None:
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def shape(self, index: int = 0) -> Shape | None:
        value = self.value(index)
        return None if value is None else self._known.of(value)

    def shapes(self) -> list[Shape] | None:
        """The shapes of all inputs, if all ranks are known."""
        shapes = [self.shape(index) for index in range(len(self.node.inputs))]
        known = [shape for shape in shapes if shape is not None]
        return known if len(known) == len(shapes) else None

    def elements(self, index: int) -> Shape | None:
        value = self.value(index)
        return None if value is None else self._known.elements(value)

    def numbers(self, index: int) -> Shape | None:
        """The elements of a list, also if its length alone is known."""
        values, shape = self.elements(index), self.shape(index)
        if values is not None or shape is None or len(shape) != 1 or not isinstance(shape[0], int):
            return values
        return (None,) * shape[0] if shape[0] <= MAX_RANK + 1 else None

    def listed(self, name: str, index: int) -> Shape | None:
        """A list that is an attribute in some sets, and an input in others; None if it is not
        known, or if it is not given: see `lacks`."""
        if name in self.node.attributes:
            return tuple(self.node.attributes.get_ints(name, ()))
        return self.numbers(index)

    def lacks(self, name: str, index: int) -> bool:
        return name not in self.node.attributes and self.value(index) is None

    def whole(self, name: str, otherwise: int) -> int:
        return self.node.attributes.get_int(name, otherwise)

    def axis(self, rank: int, otherwise: int = 0) -> int | None:
        """The attribute `axis`, counted from the first; None if there is no such axis."""
        axis = self.whole("axis", otherwise)
        return axis % rank if -rank <= axis < rank else None


Rule: TypeAlias = Callable[[LayerInputs], OutputShapes]
Listed: TypeAlias = Callable[[LayerInputs], "Shape | None"]


def operator(node: ir.Node) -> str:
    """The operator's name, with its domain if that is not ONNX's own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _same(given: LayerInputs) -> OutputShapes:
    """All outputs have the shape of the first input."""
    return [given.shape()] * len(given.node.outputs)


def _first_same(given: LayerInputs) -> OutputShapes:
    return [given.shape()]


def broadcast(formulas: Formulas, shapes: Iterable[Shape]) -> Shape:
    joined: Shape = ()
    for shape in shapes:
        pairs = zip_longest(reversed(joined), reversed(shape), fillvalue=1)
        joined = tuple(formulas.broadcast(one, other) for one, other in pairs)[::-1]
    return joined


def _elementwise(given: LayerInputs) -> OutputShapes:
    shapes = given.shapes()
    return None if not shapes else [broadcast(given.formulas, shapes)]


def _windowed(given: LayerInputs, weights: int | None, channels: Unsure = None) -> OutputShapes:
    """A convolution, whose weights are an input, or a pool."""
    data, formulas, attributes = given.shape(), given.formulas, given.node.attributes
    kernel: Sequence[Unsure] = attributes.get_ints("kernel_shape", ())
    if weights is not None:
        shape = given.shape(weights)
        if shape is None or len(shape) < 3:
            return None
        kernel, channels = shape[2:], shape[0]
    if data is None or len(data) != len(kernel) + 2 or given.whole("ceil_mode", 0):
        return None
    count = len(kernel)
    ones, none = [1] * count, [0] * 2 * count
    strides = attributes.get_ints("strides", ()) or ones
    dilations = attributes.get_ints("dilations", ()) or ones
    pads = attributes.get_ints("pads", ()) or none
    auto = attributes.get_string("auto_pad", "NOTSET")
    if not (len(strides) == len(dilations) == count and len(pads) == 2 * count):
        return None
    if min(*strides, *dilations) < 1:
        return None
    extents: list[Unsure] = []
    for at, size in enumerate(data[2:]):
        if auto.startswith("SAME"):
            extents.append(formulas.apply(divided_up, size, strides[at]))
            continue
        pad = pads[at] + pads[at + count] if auto != "VALID" else 0
        reach = formulas.times(formulas.plus(kernel[at], -1), dilations[at])
        reach = formulas.plus(reach, 1 - pad)
        extents.append(formulas.windows(size, reach, strides[at]))
    made = (data[0], data[1] if weights is None else channels, *extents)
    return [made] * len(given.node.outputs)


def _convolution(weights: int) -> Rule:
    return lambda given: _windowed(given, weights)


def _pool(given: LayerInputs) -> OutputShapes:
    return _windowed(given, None)


def _transposed_convolution(given: LayerInputs) -> OutputShapes:
    data, weights, attributes = given.shape(), given.shape(1), given.node.attributes
    if data is None or weights is None or len(data) != len(weights) or len(data) < 3:
        return None
    count, formulas = len(data) - 2, given.formulas
    strides = attributes.get_ints("strides", ()) or [1] * count
    dilations = attributes.get_ints("dilations", ()) or [1] * count
    pads = attributes.get_ints("pads", ()) or [0] * 2 * count
    more = attributes.get_ints("output_padding", ()) or [0] * count
    unlike = {len(strides), len(dilations), len(more), len(pads) // 2} != {count}
    automatic = attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if unlike or automatic or "output_shape" in attributes:
        return None
    extents = []
    for at, (size, kernel) in enumerate(zip(data[2:], weights[2:], strict=True)):
        pad = pads[at] + pads[at + count]
        moved = formulas.times(formulas.plus(size, -1), strides[at])
        reach = formulas.times(formulas.plus(kernel, -1), dilations[at])
        whole = formulas.plus(formulas.plus(moved, reach), 1 - pad + more[at])
        extents.append(formulas.apply(positive, whole))
    channels = formulas.times(weights[1], given.whole("group", 1))
    return [(data[0], channels, *extents)]


def _global_pool(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    return None if data is None or len(data) < 2 else [(*data[:2], *[1] * (len(data) - 2))]


def _product(one: int, other: int) -> Rule:
    """A product of matrices, of two inputs."""

    def rule(given: LayerInputs) -> OutputShapes:
        first, second = given.shape(one), given.shape(other)
        turned = given.whole("transA", 0) or given.whole("transB", 0)
        if not first or not second or turned or given.whole("transBatchA", 0):
            return None
        rows = first[-2:-1]
        columns = second[-1:] if len(second) > 1 else ()
        return [(*broadcast(given.formulas, (first[:-2], second[:-2])), *rows, *columns)]

    return rule


def _gemm(given: LayerInputs) -> OutputShapes:
    first, second = given.shape(), given.shape(1)
    if first is None or second is None or not len(first) == len(second) == 2:
        return None
    return [(first[bool(given.whole("transA", 0))], second[not given.whole("transB", 0)])]


def _transpose(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    if data is None:
        return None
    order = given.node.attributes.get_ints("perm", None)
    if order is None:
        return [data[::-1]]
    return [tuple(data[at] for at in order)] if sorted(order) == [*range(len(data))] else None


def _reshape(given: LayerInputs) -> OutputShapes:
    data, wanted = given.shape(), given.listed("shape", 1)
    if wanted is None:
        return None
    formulas, keeps_0 = given.formulas, given.whole("allowzero", 0)
    made: list[Unsure] = []
    for at, size in enumerate(wanted):
        if size == -1:
            made.append(-1)
        elif keeps_0 or (isinstance(size, int) and size > 0):
            made.append(formulas.apply(not_negative, size))
        elif size == 0:
            made.append(data[at] if data is not None and at < len(data) else None)
        elif data is not None and at < len(data):
            made.append(formulas.apply(copied_if_0, size, data[at]))
        else:
            made.append(None if data is None else formulas.apply(positive, size))
    if made.count(-1) > 1:
        return None
    if -1 in made:
        at = made.index(-1)
        others = [*made[:at], *made[at + 1 :]]
        known = data is not None and None not in data and None not in others
        made[at] = formulas.share(data or (), others) if known else None
    return [tuple(made)]


def _flatten(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    if data is None:
        return None
    axis = given.whole("axis", 1)
    axis += len(data) * (axis < 0)
    if not 0 <= axis <= len(data):
        return None
    product = given.formulas.product
    return [(product(data[:axis]), product(data[axis:]))]


def _axes(given: LayerInputs, rank: int, index: int = 1) -> set[int] | None:
    """The axes that an attribute or an input lists, counted from the first."""
    listed = given.listed("axes", index)
    if listed is None:
        return None
    axes = {axis % rank for axis in listed if isinstance(axis, int) and -rank <= axis < rank}
    return axes if len(axes) == len(listed) else None


def _squeeze(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    if data is None:
        return None
    if given.lacks("axes", 1):
        known = all(isinstance(size, int) for size in data)
        return [tuple(size for size in data if size != 1)] if known else None
    axes = _axes(given, len(data))
    if not axes:  # the backend takes an empty list for a missing one
        return None
    return [tuple(size for at, size in enumerate(data) if at not in axes)]


def _unsqueeze(given: LayerInputs) -> OutputShapes:
    data, listed = given.shape(), given.listed("axes", 1)
    if data is None or listed is None:
        return None
    rank = len(data) + len(listed)
    axes = _axes(given, rank)
    if axes is None:
        return [(None,) * rank]
    rest = iter(data)
    return [tuple(1 if at in axes else next(rest) for at in range(rank))]


def _concat(given: LayerInputs) -> OutputShapes:
    shapes = given.shapes()
    if not shapes or len({*map(len, shapes)}) != 1:
        return None
    axis = given.axis(len(shapes[0]))
    if axis is None:
        return None
    made = list(shapes[0])
    for shape in shapes[1:]:
        for at, size in enumerate(shape):
            if at == axis:
                made[at] = given.formulas.plus(made[at], size)
            elif not isinstance(made[at], int) and size is not None:
                made[at] = size  # all are the same in a run that does not fail
    return [tuple(made)]


def _split(given: LayerInputs) -> OutputShapes:
    data, count = given.shape(), len(given.node.outputs)
    axis = given.axis(len(data)) if data else None
    if not data or axis is None:
        return None
    parts: Sequence[Unsure] | None = given.listed("split", 1)
    if given.lacks("split", 1):
        part = given.formulas.apply(divided_up, data[axis], count)
        before = given.formulas.times(part, 1 - count)
        parts = [*[part] * (count - 1), given.formulas.plus(data[axis], before)]
    if parts is None:
        parts = [None] * count
    return [(*data[:axis], part, *data[axis + 1 :]) for part in parts]


def _slice(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    starts, ends = given.listed("starts", 1), given.listed("ends", 2)
    if data is None:
        return None
    if starts is None or ends is None or len(starts) != len(ends):
        return [(None,) * len(data)]
    steps = (1,) * len(starts) if given.lacks("steps", 4) else given.listed("steps", 4)
    axes = range(len(starts)) if given.lacks("axes", 3) else given.listed("axes", 3)
    if steps is None or axes is None or not len(steps) == len(starts) == len(axes):
        return [(None,) * len(data)]
    made = list(data)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not isinstance(axis, int) or not -len(data) <= axis < len(data):
            return [(None,) * len(data)]
        everything = start == 0 and step == 1 and isinstance(end, int) and end >= _END
        if not everything:
            made[axis] = given.formulas.apply(extent, made[axis], start, end, step)
    return [tuple(made)]


def _gather(given: LayerInputs) -> OutputShapes:
    data, indices = given.shape(), given.shape(1)
    axis = given.axis(len(data)) if data else None
    if not data or indices is None or axis is None:
        return None
    return [(*data[:axis], *indices, *data[axis + 1 :])]


def _gather_nd(given: LayerInputs) -> OutputShapes:
    data, indices, batches = given.shape(), given.shape(1), given.whole("batch_dims", 0)
    if data is None or not indices or not isinstance(indices[-1], int) or batches < 0:
        return None
    if batches + indices[-1] > len(data) or batches >= len(indices):
        return None
    return [(*indices[:-1], *data[batches + indices[-1] :])]


def _second(given: LayerInputs) -> OutputShapes:
    return [given.shape(1)]


def _expand(given: LayerInputs) -> OutputShapes:
    data, wanted = given.shape(), given.numbers(1)
    if data is None or wanted is None:
        return None
    return [broadcast(given.formulas, (data, _whole(given, wanted)))]


def _whole(given: LayerInputs, listed: Iterable[Unsure]) -> Shape:
    """The sizes that a list gives, none of which is negative in a run that does not fail."""
    return tuple(given.formulas.apply(not_negative, size) for size in listed)


def _tile(given: LayerInputs) -> OutputShapes:
    data, repeats = given.shape(), given.elements(1)
    if data is None:
        return None
    if repeats is None or len(repeats) != len(data):
        return [(None,) * len(data)]
    return [tuple(map(given.formulas.times, data, repeats))]


def _pad(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    pads = given.listed("pads", 1)
    if data is None:
        return None
    if pads is None or len(pads) != 2 * len(data) or given.value(3) is not None:
        return [(None,) * len(data)]
    formulas = given.formulas
    begun = map(formulas.plus, data, pads[: len(data)])
    return [_whole(given, map(formulas.plus, begun, pads[len(data) :]))]


def _constant_of_shape(given: LayerInputs) -> OutputShapes:
    wanted = given.numbers(0)
    return None if wanted is None else [_whole(given, wanted)]


def _reduce(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    if data is None:
        return None
    keeps = given.whole("keepdims", 1)
    if given.lacks("axes", 1):
        every = not given.whole("noop_with_empty_axes", 0)
        axes = set(range(len(data))) if every else set()
    else:
        reduced = _axes(given, len(data))
        if reduced is None:
            return [(None,) * len(data)] if keeps else None
        if not reduced:
            return None
        axes = reduced
    if keeps:
        return [tuple(1 if at in axes else size for at, size in enumerate(data))]
    return [tuple(size for at, size in enumerate(data) if at not in axes)]


def _arg(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    axis = given.axis(len(data)) if data else None
    if not data or axis is None:
        return None
    one = (1,) if given.whole("keepdims", 1) else ()
    return [(*data[:axis], *one, *data[axis + 1 :])]


def _top(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    axis = given.axis(len(data), -1) if data else None
    if not data or axis is None:
        return None
    counts = given.elements(1)
    count = counts[0] if counts else given.node.attributes.get_int("k", None)
    return [(*data[:axis], count, *data[axis + 1 :])] * 2


def _one_hot(given: LayerInputs) -> OutputShapes:
    indices, depth = given.shape(), given.elements(1)
    if indices is None:
        return None
    axis = given.axis(len(indices) + 1, -1)
    if axis is None:
        return None
    return [(*indices[:axis], depth[0] if depth else None, *indices[axis:])]


def _dynamic_quantize(given: LayerInputs) -> OutputShapes:
    return [given.shape(), (), ()]


def _recurrent(given: LayerInputs) -> OutputShapes:
    data, hidden = given.shape(), given.node.attributes.get_int("hidden_size", None)
    if hidden is None:
        return None
    if data is None or len(data) != 3:
        data = (None,) * 3
    directions = 2 if given.node.attributes.get_string("direction", "") == "bidirectional" else 1
    if given.whole("layout", 0):
        batch, steps = data[:2]
        return [(batch, steps, directions, hidden), *[(batch, directions, hidden)] * 2]
    steps, batch = data[:2]
    return [(steps, directions, batch, hidden), *[(directions, batch, hidden)] * 2]


def _depth_to_space(given: LayerInputs) -> OutputShapes:
    data, block, formulas = given.shape(), given.whole("blocksize", 0), given.formulas
    if data is None or len(data) != 4 or block < 1:
        return None
    depth = formulas.share([data[1]], [block * block])
    return [(data[0], depth, *(formulas.times(size, block) for size in data[2:]))]


def _space_to_depth(given: LayerInputs) -> OutputShapes:
    data, block, formulas = given.shape(), given.whole("blocksize", 0), given.formulas
    if data is None or len(data) != 4 or block < 1:
        return None
    depth = formulas.times(data[1], block * block)
    return [(data[0], depth, *(formulas.share([size], [block]) for size in data[2:]))]


def _resize(given: LayerInputs) -> OutputShapes:
    """Scales that are not whole numbers are rounded in ways of the backend's own."""
    data = given.shape()
    if data is None:
        return None
    unsure: list[Shape | None] = [(None,) * len(data)]
    stretched = given.node.attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
    cropped = "crop" in given.node.attributes.get_string("coordinate_transformation_mode", "")
    if not stretched or cropped or "axes" in given.node.attributes:
        return unsure
    sizes = given.elements(3)
    if sizes is not None and len(sizes) == len(data):
        return [sizes]
    scales = _scales(given, 1 if len(given.node.inputs) == 2 else 2)
    if given.value(3) is not None or scales is None or len(scales) != len(data):
        return unsure
    return [
        tuple(
            given.formulas.apply(scaled, size, int(scale)) if scale == max(1, int(scale)) else None
            for size, scale in zip(data, scales, strict=True)
        )
    ]


def _scales(given: LayerInputs, index: int) -> Sequence[float] | None:
    listed = given.node.attributes.get_floats("scales", None)
    if listed is not None:
        return listed
    value = given.value(index)
    tensor = None if value is None or value.is_graph_input() else value.const_value
    made = value.producer() if value is not None else None
    if tensor is None and made is not None and made.op_type == "Constant":
        attribute = made.attributes.get("value")
        if attribute is not None and not attribute.is_ref():
            tensor = attribute.as_tensor()
    return None if tensor is None or tensor.size > 8 else tensor.numpy().ravel().tolist()


def _range(given: LayerInputs) -> OutputShapes:
    numbers = [given.elements(at) for at in range(3)]
    if None in numbers or any(number is None or len(number) != 1 for number in numbers):
        return [(None,)]
    return [(given.formulas.apply(steps, *(number[0] for number in numbers if number)),)]


def _as_deep(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    return None if data is None else [(None,) * len(data)]


def _frames(given: LayerInputs) -> OutputShapes:
    """The spectrum of each frame. onnx takes the length of a frame for the number of frequencies,
    also where one side of them is left out."""
    data, window, formulas = given.shape(), given.shape(2), given.formulas
    steps, lengths = given.elements(1), given.elements(3) or window
    step = steps[0] if steps else None
    length = lengths[0] if lengths else None
    frames: Unsure = None
    if data is not None and len(data) > 1 and isinstance(step, int) and step > 0:
        frames = formulas.windows(data[1], length, step)
    bins = length
    if given.whole("onesided", 1):
        bins = formulas.plus(formulas.apply(quotient, length, 2), 1)
    return [(data[0] if data else None, frames, bins, 2)]


def _shape(given: LayerInputs) -> OutputShapes:
    data = _shape_elements(given)
    return [(None,)] if data is None else [(len(data),)]


def _scalar(given: LayerInputs) -> OutputShapes:  # noqa: ARG001 - as all rules
    return [()]


def _non_zero(given: LayerInputs) -> OutputShapes:
    data = given.shape()
    return None if data is None else [(len(data), None)]


def _shape_elements(given: LayerInputs) -> Shape | None:
    data = given.shape()
    if data is None:
        return None
    end = given.node.attributes.get_int("end", None)
    return data[given.whole("start", 0) : end]


def _size_element(given: LayerInputs) -> Shape | None:
    data = given.shape()
    return None if data is None else (given.formulas.product(data),)


def _first(given: LayerInputs) -> Shape | None:
    return given.elements(0)


def _cast_elements(given: LayerInputs) -> Shape | None:
    return given.elements(0) if given.whole("to", 0) == ir.DataType.INT64 else None


def _gathered(given: LayerInputs) -> Shape | None:
    data, indices = given.elements(0), given.elements(1)
    if data is None or indices is None or given.whole("axis", 0) not in (0, -1):
        return None
    valid = [at for at in indices if isinstance(at, int) and -len(data) <= at < len(data)]
    return tuple(data[at] for at in valid) if len(valid) == len(indices) else None


def _sliced(given: LayerInputs) -> Shape | None:
    data = given.elements(0)
    starts, ends = given.listed("starts", 1), given.listed("ends", 2)
    steps = (1,) if given.lacks("steps", 4) else given.listed("steps", 4)
    if data is None or starts is None or ends is None or steps is None:
        return None
    bounds = [*starts, *ends, *steps]
    whole = [bound for bound in bounds if isinstance(bound, int)]
    if len(whole) != 3 or len(bounds) != 3 or whole[2] == 0:
        return None
    return data[whole[0] : whole[1] : whole[2]]


def _concatenated(given: LayerInputs) -> Shape | None:
    parts = [given.elements(at) for at in range(len(given.node.inputs))]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return tuple(element for part in known for element in part)


def _computed(function: Callable[[Formulas, Unsure, Unsure], Unsure]) -> Listed:
    """An operation on two lists of integers, one of which may have one element."""

    def rule(given: LayerInputs) -> Shape | None:
        one, other = given.elements(0), given.elements(1)
        if one is None or other is None:
            return None
        lengths = {len(one), len(other)} - {1}
        if len(lengths) > 1:
            return None
        length = lengths.pop() if lengths else 1  # which may be 0
        repeated = (
            elements * length if len(elements) == 1 else elements for elements in (one, other)
        )
        items = [function(given.formulas, *pair) for pair in zip(*repeated, strict=True)]
        # Constants may have 32 bits. What follows from a shape has 64.
        return tuple(None if isinstance(item, int) and abs(item) > _END else item for item in items)

    return rule


_ALIKE: Final = (
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitwiseNot",
    "Cast",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "CumSum",
    "DequantizeLinear",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LRN",
    "Mish",
    "Neg",
    "Not",
    "QuantizeLinear",
    "Reciprocal",
    "Relu",
    "Round",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Tan",
    "Tanh",
    "InstanceNormalization",
    "LpNormalization",
    "MeanVarianceNormalization",
    "ReverseSequence",
    "ThresholdedRelu",
    "Trilu",
    "com.microsoft.BiasGelu",
    "com.microsoft.DequantizeLinear",
    "com.microsoft.FastGelu",
    "com.microsoft.Gelu",
    "com.microsoft.QLinearLeakyRelu",
    "com.microsoft.QLinearSigmoid",
    "com.microsoft.QLinearSoftmax",
    "com.microsoft.QuickGelu",
    "com.microsoft.QuantizeLinear",
)
_BROADCAST: Final = (
    "Add",
    "And",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "PRelu",
    "Pow",
    "Sub",
    "Sum",
    "Where",
    "Xor",
)
_REDUCED: Final = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)

SHAPES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **dict.fromkeys(_ALIKE, _same),
        **dict.fromkeys(_BROADCAST, _elementwise),
        **dict.fromkeys(_REDUCED, _reduce),
        **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
        **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
        **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), _global_pool),
        **dict.fromkeys(("GRU", "LSTM", "RNN", "com.microsoft.DynamicQuantizeLSTM"), _recurrent),
        **dict.fromkeys(
            ("BatchNormalization", "LayerNormalization", "RMSNormalization", "GroupNormalization"),
            _first_same,
        ),
        **dict.fromkeys(
            (
                "com.microsoft.SkipLayerNormalization",
                "com.microsoft.SkipSimplifiedLayerNormalization",
            ),
            _first_same,
        ),
        **dict.fromkeys(("Conv", "ConvInteger", "com.microsoft.FusedConv"), _convolution(1)),
        **dict.fromkeys(
            ("MatMul", "MatMulInteger", "com.microsoft.FusedMatMul"),
            _product(0, 1),
        ),
        "Concat": _concat,
        "ConstantOfShape": _constant_of_shape,
        "ConvTranspose": _transposed_convolution,
        "DFT": _as_deep,
        "DepthToSpace": _depth_to_space,
        "DynamicQuantizeLinear": _dynamic_quantize,
        "Expand": _expand,
        "Flatten": _flatten,
        "Gather": _gather,
        "GatherElements": _second,
        "GatherND": _gather_nd,
        "Gemm": _gemm,
        "NonZero": _non_zero,
        "OneHot": _one_hot,
        "Pad": _pad,
        "QLinearConv": _convolution(3),
        "QLinearMatMul": _product(0, 3),
        "Range": _range,
        "Reshape": _reshape,
        "Resize": _resize,
        "STFT": _frames,
        "Shape": _shape,
        "Size": _scalar,
        "Slice": _slice,
        "SpaceToDepth": _space_to_depth,
        "Split": _split,
        "Squeeze": _squeeze,
        "Tile": _tile,
        "TopK": _top,
        "Transpose": _transpose,
        "Unsqueeze": _unsqueeze,
        "Upsample": _resize,
    }
)
"""By operator: the shapes of the outputs, as far as they are known."""

ELEMENTS: Final[Mapping[str, Listed]] = MappingProxyType(
    {
        **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze"), _first),
        "Add": _computed(Formulas.plus),
        "Cast": _cast_elements,
        "Concat": _concatenated,
        "Div": _computed(lambda formulas, one, other: formulas.apply(quotient, one, other)),
        "Gather": _gathered,
        "Mul": _computed(Formulas.times),
        "Shape": _shape_elements,
        "Size": _size_element,
        "Slice": _sliced,
        "Sub": _computed(lambda formulas, one, other: formulas.apply(minus, one, other)),
    }
)
"""By operator: the elements of an output that is a scalar or a list, as far as they are known."""
