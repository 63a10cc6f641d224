"""Repairs layers that ONNX Runtime computes otherwise than ONNX says.

A repair changes no right result and costs little. A layer that would need more is refused
(`refusals`), or fails in a run (`guards`). Repairs are made whatever the configuration says.

The fuzzer found the faults with ONNX Runtime 1.31.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import onnx_ir as ir

from headrace.plugins.cpu.backend.inserter import LayerInserter, constant, opset_of
from headrace.plugins.cpu.backend.tree_classifiers import repair_tree_classifier
from headrace.runtime.intake.naming import value_names, walk
from headrace.runtime.network.constants import tensor_of

_SUFFIX: Final = "/headrace.repair"
_TYPES = ir.DataType
_FLOATS: Final = (_TYPES.FLOAT, _TYPES.DOUBLE, _TYPES.FLOAT16, _TYPES.BFLOAT16)
_FLOAT8: Final = tuple(each for each in _TYPES if each.name.startswith(("FLOAT8E4", "FLOAT8E5")))
_FEW_BITS: Final = (_TYPES.INT4, _TYPES.UINT4, _TYPES.INT2, _TYPES.UINT2)
_LARGEST: Final = {
    _TYPES.FLOAT8E4M3FN: np.float32(464),
    _TYPES.FLOAT8E5M2: np.nextafter(np.float32(61440), np.float32(0)),
}
"""For each type, the largest number that is rounded to a finite one, as a float32. A tie is rounded
to even: 464 to 448, but 61440 to infinity."""

_LARGEST_ENDS: Final = (2**31 - 1, 2**63 - 1)
_ENDS_BY_DIRECTION: Final = 11
_LAST_KEY_COUNTS: Final = 4
_ML: Final = "ai.onnx.ml"
_OF_ML: Final = ("LabelEncoder", "TreeEnsembleClassifier")
_USUAL_LOCALES: Final = ("", "en_US", "en_US.UTF-8", "en_US.utf8")
_ARGS: Final = ("ArgMax", "ArgMin")
_NORMALS: Final = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum")
REDUCTIONS: Final = (*_ARGS, *(f"Reduce{each}" for each in (*_NORMALS, "SumSquare")))


def repair(model: ir.Model) -> bool:
    """Repairs every layer of `model`, bodies included. Returns whether it changed any."""
    nodes = [node for node in walk(model.graph) if needs_repair(node)]
    names = value_names(model)
    opset = opset_of(model)
    changed = False
    for node in nodes:
        version = model.opset_imports.get(_ML, 1) if node.domain == _ML else opset
        before, held = _form(node), [*node.attributes.data.values()]
        _REPAIRS[node.op_type](node, LayerInserter(node, names, _SUFFIX, version))
        # onnx-ir compares attributes by their values, which may be long.
        same = [*map(id, held)] == [*map(id, node.attributes.data.values())]
        changed |= not same or _form(node) != before
    return changed


def _form(node: ir.Node) -> tuple[object, ...]:
    """What a repair changes of the node or of its graph, besides attributes."""
    graph = node.graph
    layers = -1 if graph is None else len(graph)
    return layers, node.op_type, node.inputs


def needs_repair(node: ir.Node) -> bool:
    domains = (_ML,) if node.op_type in _OF_ML else ("", "ai.onnx")
    return node.op_type in _REPAIRS and node.domain in domains


_Repair: TypeAlias = Callable[[ir.Node, LayerInserter], None]


def _cast(node: ir.Node, before: LayerInserter) -> None:
    """Repairs three casts. To integers of few bits, it truncates, as to other integers; the backend
    rounds. To booleans, it makes -0 false, like 0. Without saturation, it casts a number beyond the
    largest in the same way as infinity."""
    value, target = node.inputs[0], _target(node)
    if value is None or target is None:
        return
    steps: ir.Value | None = None
    if target in _FEW_BITS and value.dtype in (*_FLOATS, *_FLOAT8):
        steps = before.cast(value, _TYPES.INT32)
    elif target == _TYPES.BOOL and value.dtype in _FLOAT8:
        steps = before.cast(value, _TYPES.FLOAT)
    elif target in _LARGEST and not node.attributes.get_int("saturate", 1):
        steps = _beyond_is_infinite(before.cast(value, _TYPES.FLOAT), _LARGEST[target], before)
    if steps is not None:
        node.replace_input_with(0, steps)


def _target(node: ir.Node) -> ir.DataType | None:
    if node.op_type == "Cast":
        number = node.attributes.get_int("to", 0)
        return _TYPES(number) if number in {*_TYPES} else None
    like = node.inputs[1] if len(node.inputs) > 1 else None
    return like.dtype if like is not None else None


def _beyond_is_infinite(value: ir.Value, largest: np.float32, before: LayerInserter) -> ir.Value:
    """Replaces numbers whose absolute value is above `largest` with infinity of the same sign. A
    type without an infinity makes it NaN."""
    size = before.layer("Abs", value)
    truth = ir.TensorType(_TYPES.BOOL)
    limit = before.constant(np.array(largest, np.float32))
    beyond = before.layer("Greater", size, limit, type=truth)
    infinite = before.layer("Mul", value, before.constant(np.array(np.inf, np.float32)))
    return before.layer("Where", beyond, infinite, value, type=value.type)


def _dropout(node: ir.Node, _: LayerInserter) -> None:
    """Drops the inputs that count in training alone. If one of them is the only input that another
    layer computes, the backend takes it for the data."""
    training = node.inputs[2] if len(node.inputs) > 2 else None
    given = constant(training) if training is not None else None
    if training is None or (given is not None and given.numpy().ravel().tolist() == [False]):
        node.resize_inputs(1)


def _label_encoder(node: ir.Node, before: LayerInserter) -> None:
    """Drops a key that comes again, because the last one counts, and for the backend the first.
    Before operator set 4, ONNX does not say which one does."""
    given = {name.partition("_")[0]: name for name in node.attributes}
    if before.opset < _LAST_KEY_COUNTS or not {"keys", "values"} <= given.keys():
        return
    keys, values = (_elements(node.attributes[given[each]]) for each in ("keys", "values"))
    last = {None if key != key else key: at for at, key in enumerate(keys)}  # NaN is one key
    if len(keys) != len(values) or len(last) == len(keys):
        return
    kept = sorted(last.values())
    for name in (given["keys"], given["values"]):
        attribute = node.attributes[name]
        picked: Any = [_elements(attribute)[at] for at in kept]
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = tensor_of(attribute)
            picked = (
                ir.StringTensor([text.encode() for text in picked], shape=ir.Shape([len(picked)]))
                if tensor.dtype == _TYPES.STRING
                else ir.tensor(np.array(picked, tensor.dtype.numpy()))
            )
        node.attributes[name] = ir.Attr(name, attribute.type, picked)


def _string_normalizer(node: ir.Node, before: LayerInserter) -> None:  # noqa: ARG001 - as all repairs
    """Names a locale that every machine has, and that changes case as the default one does."""
    if node.attributes.get_string("locale", "") in _USUAL_LOCALES:
        node.attributes["locale"] = ir.AttrString("locale", "C.UTF-8")


def _elements(attribute: ir.Attr) -> list[Any]:
    if attribute.type != ir.AttributeType.TENSOR:
        return [*attribute.value]
    elements = tensor_of(attribute).numpy().ravel().tolist()
    return [element.decode() if isinstance(element, bytes) else element for element in elements]


def _one_hot(node: ir.Node, before: LayerInserter) -> None:
    """Cuts the fractions of indices, as ONNX does. For the backend such an index is nowhere."""
    value = node.inputs[0]
    if value is not None and value.dtype in _FLOATS:
        node.replace_input_with(0, before.cast(before.cast(value, _TYPES.INT64), value.dtype))


def _normalize(node: ir.Node, before: LayerInserter) -> None:
    """Adds 1e-9 to the deviation, as ONNX does before it divides. The backend does not, and a row
    of equal numbers has no variance. Computes in float64, because in float32 the mean of equal
    numbers may differ from them by more than 1e-9."""
    value = node.inputs[0]
    if value is None or value.dtype not in _FLOATS or before.opset < 9:
        return
    axes = [*node.attributes.get_ints("axes", (0, 2, 3))]
    wide = before.cast(value, _TYPES.DOUBLE)
    centred = before.layer("Sub", wide, before.over("ReduceMean", wide, axes, keepdims=1))
    squares = before.layer("Mul", centred, centred)
    deviation = before.layer("Sqrt", before.over("ReduceMean", squares, axes, keepdims=1))
    divisor = before.layer("Add", deviation, before.constant(np.array(1e-9)))
    _become_cast(node, before.layer("Div", centred, divisor), value.dtype)


def _become_cast(node: ir.Node, value: ir.Value, dtype: ir.DataType) -> None:
    node.op_type = "Cast"
    node.attributes.clear()
    node.attributes["to"] = ir.AttrInt64("to", dtype.value)
    node.replace_input_with(0, value)


def _count_axes_from_the_first(node: ir.Node, before: LayerInserter) -> None:
    """Replaces axes that are counted from the last with the same axes counted from the first. If an
    input has no elements, the backend keeps the sizes of axes that are counted from the last. If
    the rank is not known, axes that are attributes stay as they are, and `guards` guards the input.
    """
    data = node.inputs[0]
    if data is None:
        return
    if data.shape is not None:
        if all(isinstance(size, int) and size for size in data.shape):
            return
        _count_in_attributes(node, data.shape.rank())
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is None:
        return
    known = constant(axes)
    if known is not None and (known.numpy() >= 0).all():
        return
    if known is not None and data.shape is not None:
        node.replace_input_with(1, before.constant(_counted(known.numpy(), data.shape.rank())))
        return
    zero, one = before.constant(np.array(0)), before.constant(np.array(1))
    rank = before.layer("Size", before.layer("Shape", data))
    positions = before.layer("Range", zero, rank, one)
    counted = before.layer("Gather", positions, axes, shape=axes.shape)  # fails if out of range
    node.replace_input_with(1, counted)


def _counted(axes: np.ndarray[Any, Any], rank: int) -> np.ndarray[Any, Any]:
    return np.where((axes < 0) & (axes >= -rank), axes + rank, axes)


def _count_in_attributes(node: ir.Node, rank: int) -> None:
    if node.op_type in _ARGS:
        axis = _counted(np.array(node.attributes.get_int("axis", 0)), rank)
        node.attributes["axis"] = ir.AttrInt64("axis", int(axis))
    axes = node.attributes.get_ints("axes", ())
    if axes:
        counted = _counted(np.array(axes), rank).tolist()
        node.attributes["axes"] = ir.AttrInt64s("axes", counted)


def _slice(node: ir.Node, before: LayerInserter) -> None:
    """Lowers an end that is the largest integer by one where a step may be negative. Such an end is
    beyond the last element, and nothing lies between. The backend slices to the first element then.
    Before operator set 11, ONNX recommends this end for both directions."""
    _, _, ends, _, steps = [*node.inputs, *[None] * 5][:5]
    if before.opset < _ENDS_BY_DIRECTION or ends is None or ends.dtype is None or steps is None:
        return
    step, end = constant(steps), constant(ends)
    if step is not None and (step.numpy() > 0).all():
        return
    largest = [each for each in _LARGEST_ENDS if each <= np.iinfo(ends.dtype.numpy()).max]
    if end is not None:
        is_largest = np.isin(end.numpy(), largest)
        if is_largest.any():
            node.replace_input_with(2, before.constant(end.numpy() - is_largest))
        return
    truth = ir.TensorType(_TYPES.BOOL)
    lowered = ends
    for each in largest:
        limit = before.constant(np.array(each, ends.dtype.numpy()))
        one = before.cast(before.layer("Equal", ends, limit, type=truth), ends.dtype)
        lowered = before.layer("Sub", lowered, one, type=ends.type, shape=ends.shape)
    node.replace_input_with(2, lowered)


def _split_texts(node: ir.Node, before: LayerInserter) -> None:
    """Splits an empty text into one part if a delimiter is given. The backend makes no part."""
    texts = node.inputs[0]
    if texts is None or not node.attributes.get_string("delimiter", ""):
        return
    kinds = [ir.TensorType(_TYPES.STRING), ir.TensorType(_TYPES.INT64)]
    found = [
        ir.Value(name=before.names.fresh(f"{node.name}{_SUFFIX}"), type=kind) for kind in kinds
    ]
    before.place(
        ir.node("StringSplit", [texts], node.attributes, outputs=found, name=found[0].name)
    )
    parts, counts = found
    zero, one = (before.constant(np.array([number])) for number in (0, 1))
    nothing = before.layer("Constant", value_string="", type=kinds[0])
    size = before.layer("Size", texts, type=kinds[1])
    sizes = before.layer("Shape", parts)
    there = before.layer("Gather", sizes, before.constant(np.array([-1])))
    due = before.layer("Sub", before.layer("Min", size, one), there)
    lacking = before.layer(
        "Concat", before.layer("Shape", texts), before.layer("Max", due, zero), axis=0
    )
    empty = before.layer("Expand", nothing, lacking)
    made = [
        before.layer("Concat", parts, empty, axis=-1),
        before.layer("Max", counts, one),
    ]
    assert node.graph is not None
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], [], node.outputs, made)


def _split_to_sequence(node: ir.Node, before: LayerInserter) -> None:  # noqa: ARG001 - as all repairs
    """Drops `keepdims` if lengths are given: it means nothing then. The backend would drop axes of
    length 1."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        node.attributes.pop("keepdims", None)


def _squeeze(node: ir.Node, before: LayerInserter) -> None:  # noqa: ARG001 - as all repairs
    """Makes a Squeeze with an empty list of axes an Identity. The backend treats an empty list like
    a missing one, and squeezes all axes of size 1."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    known = constant(axes) if axes is not None else None
    if known is not None and not known.size:
        node.op_type = "Identity"
        node.resize_inputs(1)


_REPAIRS: Final[Mapping[str, _Repair]] = MappingProxyType(
    {
        **dict.fromkeys(REDUCTIONS, _count_axes_from_the_first),
        "Cast": _cast,
        "CastLike": _cast,
        "Dropout": _dropout,
        "LabelEncoder": _label_encoder,
        "MeanVarianceNormalization": _normalize,
        "OneHot": _one_hot,
        "Slice": _slice,
        "SplitToSequence": _split_to_sequence,
        "Squeeze": _squeeze,
        "StringNormalizer": _string_normalizer,
        "StringSplit": _split_texts,
        "TreeEnsembleClassifier": repair_tree_classifier,
    }
)
