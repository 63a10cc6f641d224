"""Finds outputs whose values ONNX does not define, or leaves to the arithmetic.

Each class below is about a kind of operator and a kind of value. In these, answers are compared by
type and shape alone. A device must still refuse or answer, and answer the same twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper

from tools.fuzz.devices.compare import error_of
from tools.fuzz.devices.undefined.arithmetic import POINTWISE, RULES, Array
from tools.fuzz.devices.values import bounds, is_float, is_integer, wide
from tools.fuzz.devices.variant import Feed, Variant, inferred

_QUANTISING = frozenset(
    ["DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear", "QLinearConv", "QLinearMatMul"]
)
_INTERPOLATING = frozenset([b"bicubic", b"bilinear", b"cubic", b"linear"])
_LEAST_OF_E8M0 = 2.0**-127
_SCALES = {"QuantizeLinear": (1,), "QLinearConv": (1, 4, 6), "QLinearMatMul": (1, 4, 6)}
_MAGNIFYING = frozenset(["Div", "Log", "Pow", "Reciprocal", "Sqrt"])
_ROUNDING = frozenset(["MeanVarianceNormalization", "MelWeightMatrix"])
_PREDICTORS = frozenset(
    ["Scaler", "TreeEnsemble"]
    + [
        f"{kind}{what}"
        for kind in ("Linear", "SVM", "TreeEnsemble")
        for what in ("Classifier", "Regressor")
    ]
)
_SIZED_BY_VALUES = frozenset(["Compress", "NonMaxSuppression", "NonZero", "Range", "Unique"])


def reason(variant: Variant, number: int) -> str | None:
    """Why the values of the outputs of the variant's request are not defined; None if they are."""
    model = variant.proto
    operators = {node.op_type for node in model.graph.node}
    feed = variant.feeds[number]
    values = [*_arrays(feed, model)]
    found = next((found for rule in RULES if (found := rule(operators, values))), None)
    found = found or _other_type(model)
    return found or next((found for rule in _RULES if (found := rule(model, feed))), None)


def is_random(variant: Variant, number: int) -> bool:
    """Whether the request draws random numbers, so that two answers to it differ."""
    return _drops_out(variant.proto, variant.feeds[number]) is not None


def steps(variant: Variant) -> int:
    """How much integer outputs may differ: quantised and interpolated numbers by one, because ONNX
    leaves open in what precision they are computed before they are rounded, and how."""
    nodes = variant.proto.graph.node
    if "Quantize" in variant.origin or any(node.op_type in _QUANTISING for node in nodes):
        return 1
    modes = {a.s for each in nodes for a in each.attribute if a.name == "mode"}
    linear = not modes and any(each.op_type == "GridSample" for each in nodes)
    return int(linear or bool(modes & _INTERPOLATING))


def noise(variant: Variant, number: int) -> float:
    """The largest number that a sum in the request may have gone through, or 1: where such sums
    cancel out, what is left is of the size of their rounding."""
    model = variant.proto
    if {node.op_type for node in model.graph.node} <= POINTWISE | {"Constant"}:
        return 0.0
    largest = 1.0
    for each in _arrays(variant.feeds[number], model):
        if each.dtype != object and is_float(each.dtype) and each.size:
            sizes = np.abs(wide(each).astype(np.float64))
            largest = max(largest, float(sizes[np.isfinite(sizes)].max(initial=0.0)))
    return largest


def coarseness(variant: Variant) -> float:
    """The relative error of the floats of fewest bits that the network casts to: whatever type its
    outputs have, they went through those."""
    types = _dtypes(_cast_to(variant.proto))
    return max((error_of(each) for each in types if is_float(each)), default=0.0)


def rests_on_rounding(variant: Variant) -> bool:
    """Whether the network subtracts, and then divides or takes a root or a logarithm. It may then
    turn the rounding errors of terms that cancel out into large numbers. Or whether it computes
    which element is the nearest to a point in a crop, and the point may lie in the middle, or in
    which bin a frequency is, and the frequency may lie on the bin's edge."""
    nodes = variant.proto.graph.node
    operators = {node.op_type for node in nodes}
    crops = any(a.s == b"tf_crop_and_resize" for each in nodes for a in each.attribute)
    whole = crops or bool(operators & _ROUNDING)
    return whole or ("Sub" in operators and bool(operators & _MAGNIFYING))


def open_forms(variant: Variant) -> tuple[str, ...]:
    """Differences in form, which follow from values in outputs whose sizes depend on them."""
    model = variant.proto
    operators = {node.op_type for node in model.graph.node}
    shape = ("shape",) if operators & (_SIZED_BY_VALUES | _PREDICTORS) else ()
    return ("dtype", *shape) if _other_type(model) else shape


def _other_type(model: onnx.ModelProto) -> str | None:
    """Whether the network declares an output of another type than its layers make."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for port in bare.graph.output:
        port.type.Clear()
    try:
        made = inferred(bare).graph.output
    except Exception:  # noqa: BLE001 - nothing is known then
        return None
    for one, other in zip(model.graph.output, made, strict=True):
        types = _element(one.type), _element(other.type)
        if 0 not in types and types[0] != types[1]:
            return "an output that is declared with another type than its layer makes"
    return None


def _element(declared: onnx.TypeProto) -> int:
    if declared.HasField("sequence_type"):
        return _element(declared.sequence_type.elem_type)
    return int(declared.tensor_type.elem_type)


def _cast_too_far(model: onnx.ModelProto, feed: Feed) -> str | None:
    """Whether a float is cast to an integer type that cannot represent it, or to the float type
    that has no sign and no zero. For 0 without saturation, ONNX's text says NaN, and its evaluator
    the least number."""
    targets = _cast_to(model)
    if any(node.op_type == "CastLike" for node in model.graph.node):
        targets += [port.type.tensor_type.elem_type for port in model.graph.output]
    for dtype in _dtypes(targets):
        for each in _arrays(feed, model):
            if each.dtype != object and is_float(each.dtype) and each.size:
                numbers = wide(each).astype(np.float64)
                if not _has(dtype, numbers):
                    return "a cast of a number that the target type does not have"
    return None


def _cast_to(model: onnx.ModelProto) -> list[int]:
    return [
        attribute.i
        for node in model.graph.node
        if node.op_type == "Cast"
        for attribute in node.attribute
        if attribute.name == "to"
    ]


def _dtypes(elements: Iterable[int]) -> Iterator[np.dtype[Any]]:
    """The types of those numbers that are types of ONNX."""
    known = {*onnx.TensorProto.DataType.values()} - {onnx.TensorProto.UNDEFINED}
    return map(helper.tensor_dtype_to_np_dtype, known.intersection(elements))


def _has(dtype: np.dtype[Any], numbers: Array) -> bool:
    if dtype == ml_dtypes.float8_e8m0fnu:
        return bool((numbers >= _LEAST_OF_E8M0).all())
    if not is_integer(dtype):
        return True
    low, high = bounds(dtype)
    whole = np.trunc(numbers)
    return bool(((whole >= low) & (whole <= high)).all())


def _no_scale(model: onnx.ModelProto, feed: Feed) -> str | None:
    given = _given(model, feed)
    for node in model.graph.node:
        for at in _SCALES.get(node.op_type, ()):
            scale = given.get(node.input[at])
            if scale is not None and not wide(scale).all():
                return "a quantisation with a scale of zero"
    return None


def _one_corner(model: onnx.ModelProto, feed: Feed) -> str | None:
    """Whether corners are aligned, and the height or the width is one pixel. The centres of the
    first and the last pixel are at -1 and 1. For a single one, ONNX's function divides by 0, its
    evaluator takes -1, and PyTorch, which the specification refers to, takes the middle. For a
    depth of one, the function and the evaluator both take -1."""
    given = _given(model, feed)
    for node in model.graph.node:
        aligned = any(each.name == "align_corners" and each.i for each in node.attribute)
        if node.op_type == "AffineGrid" and aligned:
            sizes = given.get(node.input[1])
            if sizes is not None and (sizes[2:][-2:] == 1).any():
                return "a grid whose aligned corners are one pixel"
    return None


def _drops_out(model: onnx.ModelProto, feed: Feed) -> str | None:
    if any(training.any() for training in _inputs(model, feed, "Dropout", 2)):
        return "a dropout in training"
    return None


def _repeated_axis(model: onnx.ModelProto, feed: Feed) -> str | None:
    if any(np.unique(axes).size < axes.size for axes in _inputs(model, feed, "Pad", 3)):
        return "a Pad of the same axis twice"
    return None


def _far_write(model: onnx.ModelProto, feed: Feed) -> str | None:
    """Whether a position in a circular cache is so far that a step more leaves its type. ONNX's
    evaluator counts on from the least number."""
    for node in model.graph.node:
        circular = any(each.s == b"circular" for each in node.attribute)
        for positions in _inputs(model, feed, "TensorScatter", 2) if circular else ():
            if (positions > bounds(positions.dtype)[1] - 2**32).any():
                return "a position that the type does not have"
    return None


def _unsorted(model: onnx.ModelProto, _: Feed) -> str | None:
    for node in model.graph.node:
        if node.op_type == "TopK" and any(a.name == "sorted" and not a.i for a in node.attribute):
            return "the order of the largest elements, which are not to be sorted"
    return None


def _one_score(model: onnx.ModelProto, _: Feed) -> str | None:
    """Whether one number decides between two classes. ONNX does not say what the other class's
    score is then, and which of the two the number is for."""
    for node in model.graph.node:
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        names = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
        labels = sum(len(given.get(name, ())) for name in names)
        alone = {
            "LinearClassifier": len(given.get("intercepts", ())) == 1,
            "SVMClassifier": "vectors_per_class" in given and not given.get("prob_a"),
            "TreeEnsembleClassifier": len({*given.get("class_ids", ())}) == 1,
        }
        if labels <= 2 and alone.get(node.op_type, False):
            return "two classes, and one score"
    return None


def _no_batch(model: onnx.ModelProto, feed: Feed) -> str | None:
    """Whether features are not rows of a matrix. ONNX does not say what is a feature then."""
    if any(node.op_type in _PREDICTORS for node in model.graph.node) and any(
        isinstance(value, np.ndarray) and value.ndim != 2 for value in feed.values()
    ):
        return "features that are not a matrix"
    return None


def _long_letters(model: onnx.ModelProto, feed: Feed) -> str | None:
    """Whether a letter is several in the other case, as ß is SS. ONNX does not say whether it then
    stays as it is."""
    texts = [
        str(text) for each in _arrays(feed, model) if each.dtype == object for text in each.flat
    ]
    letters = {letter for text in texts for letter in text}
    longer = any(len(each.upper()) != 1 or len(each.lower()) != 1 for each in letters)
    if longer and any(node.op_type == "StringNormalizer" for node in model.graph.node):
        return "a letter that is several in the other case"
    return None


def _inputs(model: onnx.ModelProto, feed: Feed, operator: str, at: int) -> Iterator[Array]:
    """Input `at` of each layer of the operator, where it is known."""
    given = _given(model, feed)
    for node in model.graph.node:
        value = given.get(node.input[at]) if at < len(node.input) else None
        if node.op_type == operator and value is not None:
            yield value


def _given(model: onnx.ModelProto, feed: Feed) -> dict[str, Any]:
    """The values that are known: a request's, and constants."""
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    return {**constants, **feed}


def _arrays(feed: Feed, model: onnx.ModelProto) -> Iterator[Array]:
    for value in feed.values():
        yield from _flat(value)
    for tensor in model.graph.initializer:
        yield onnx.numpy_helper.to_array(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.FLOAT:
                yield np.array(attribute.f)
            elif attribute.floats:
                yield np.array(attribute.floats)
            elif attribute.type == onnx.AttributeProto.TENSOR:
                yield onnx.numpy_helper.to_array(attribute.t)


def _flat(value: Any) -> Iterator[Array]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    elif isinstance(value, np.ndarray):
        yield value


_RULES = (
    _cast_too_far,
    _drops_out,
    _far_write,
    _long_letters,
    _no_batch,
    _no_scale,
    _one_corner,
    _one_score,
    _repeated_axis,
    _unsorted,
)
