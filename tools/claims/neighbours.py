"""Other layers made from one: of older sets, other types, ranks, attributes, values, constants.

Many are not valid; ONNX Runtime, which refuses those, decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx

from headrace.plugins.openvino.claims.forms import QUANTITIES, schema_of
from tools.claims.layer import Array, Layer

_LEAST_SET: Final = 1
_MOST_TYPES: Final = 40
_MOST_RANK: Final = 7
_TYPES: Final = tuple(
    f"tensor({name})"
    for name in (
        "float",
        "int64",
        "int32",
        "bool",
        "float16",
        "uint8",
        "int8",
        "double",
    )
)
_NUMPY: Final[Mapping[str, np.dtype[Any]]] = {
    text: onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(text[7:-1].upper()))
    for text in _TYPES
}
_AXES: Final = ("axis", "axes", "perm")
_CHOSEN_TYPES: Final = ("to", "dtype")
_COUNT: Final = "num_outputs"  # it fits the outputs, or ONNX Runtime reads beyond them
_MOST_FLAG: Final = 1
_FLOAT_BYTES: Final = 4
_FINE: Final = 1e-9


def neighbours(seed: Layer, others: Mapping[str, Sequence[Any]]) -> Iterator[Layer]:
    """Layers with other types than the seed's, and what is made of them and of the seed.

    Args:
        others: the values that the attributes of the operator have in other seeds, by name.
    """
    for at, older in enumerate(in_sets(seed)):
        for typed in _typed(older):
            yield from masked(typed)
            # All that differs in more than types is tried in the newest set, and for the types that
            # the seed has in all sets.
            if at == 0 or not typed.way.endswith("types"):
                yield from _alike(typed, others)


def _alike(layer: Layer, others: Mapping[str, Sequence[Any]]) -> Iterator[Layer]:
    settled = _settled(layer)
    for each in (*_ranks(settled), *_values(settled), *_broadcast(settled)):
        yield each
    for each in _attributes(settled, others):
        yield each
        yield each.changed("tail", constants=_tail(each))
    yield from _fewer_outputs(settled)


# ---- constants ----


def masked(layer: Layer) -> Iterator[Layer]:
    """The layer with other inputs constant: none, all but the first, sizes, the first. Nobody asks
    whether a layer is claimed all inputs of which are constants."""
    present = frozenset(at for at, value in enumerate(layer.inputs) if value is not None)
    first = frozenset(sorted(present)[:1])
    masks = {
        frozenset(): "none",
        _tail(layer): "tail",
        _settled(layer).constants: "sizes",
        first: "first",
    }
    for mask, name in masks.items():
        if mask and mask == present:
            continue
        if mask == layer.constants and mask == frozenset():
            yield layer
        else:
            yield layer.changed(name, constants=mask, expected=layer.expected)


def _tail(layer: Layer) -> frozenset[int]:
    present = [at for at, value in enumerate(layer.inputs) if value is not None]
    return frozenset(present[1:])


def _settled(layer: Layer) -> Layer:
    """The layer with constant integers after the first input, which may fix the sizes."""
    found = frozenset(
        at
        for at, value in enumerate(layer.inputs)
        if at and value is not None and value.dtype.kind in "iu" and value.ndim <= 1
    )
    return layer.changed("", constants=found) if found else layer


# ---- operator sets ----


def in_sets(layer: Layer) -> Iterator[Layer]:
    """The layer in each set in which the operator changed, the newest first."""
    yield layer
    domain, operator = layer.node.domain, layer.node.op_type
    current = schema_of(domain, operator, layer.opset)
    if current is None:
        return
    done = {current.since_version}
    for opset in range(layer.opset - 1, _LEAST_SET - 1, -1):
        schema = schema_of(domain, operator, opset)
        if schema is not None and schema.since_version not in done:
            done.add(schema.since_version)
            older = _in_set(layer, current, schema, opset)
            if older is not None:
                yield older


def _in_set(
    layer: Layer, current: onnx.defs.OpSchema, older: onnx.defs.OpSchema, opset: int
) -> Layer | None:
    """The layer as an older set has it: what became an input is an attribute again. None if that
    set has no such layer."""
    names = [port.name for port in older.inputs]
    inputs: list[Array | None] = [None] * len(layer.inputs)
    attributes = list(layer.node.attribute)
    for at, value in enumerate(layer.inputs):
        name = current.inputs[min(at, len(current.inputs) - 1)].name
        if value is None:
            continue
        if name in names and at < len(current.inputs):
            place = names.index(name)
        elif at < len(names) or (names and _is_list(older)):
            place = at
        elif name in older.attributes:
            kind = older.attributes[name].type
            made = _as_attribute(name, value, kind)
            if made is None:
                return None
            attributes.append(made)
            continue
        else:
            return None
        inputs[place] = value
    kept = [each for each in attributes if each.name in older.attributes]
    lost = [each for each in attributes if each.name not in older.attributes]
    if any(not _is_default(each, current) for each in lost):
        return None
    node = onnx.NodeProto()
    node.CopyFrom(layer.node)
    del node.attribute[:]
    node.attribute.extend(kept)
    while inputs and inputs[-1] is None:
        inputs.pop()
    del node.input[len(inputs) :]
    constants = frozenset(at for at in layer.constants if at < len(inputs))
    return layer.changed(
        f"set{opset}", node=node, opset=opset, inputs=tuple(inputs), constants=constants
    )


def _is_list(schema: onnx.defs.OpSchema) -> bool:
    return schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic


def _as_attribute(name: str, value: Array, kind: Any) -> onnx.AttributeProto | None:
    numbers = value.ravel().tolist()
    types = onnx.defs.OpSchema.AttrType
    if kind in (types.INTS, types.FLOATS):
        return onnx.helper.make_attribute(name, numbers) if numbers else None
    if kind in (types.INT, types.FLOAT) and len(numbers) == 1:
        return onnx.helper.make_attribute(name, numbers[0])
    return None


def _is_default(attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema) -> bool:
    declared = schema.attributes.get(attribute.name)
    if declared is None or not declared.default_value.type:
        return False
    values = map(onnx.helper.get_attribute_value, (declared.default_value, attribute))
    return bool(next(values) == next(values))


# ---- types ----


def _typed(layer: Layer) -> Iterator[Layer]:
    yield layer
    schema = schema_of(layer.node.domain, layer.node.op_type, layer.opset)
    if schema is None or not layer.inputs:
        return
    places = [name for name in _CHOSEN_TYPES if name in schema.attributes]
    choices: list[list[tuple[Sequence[int] | str, Any]]] = [
        [(inputs, _NUMPY[text]) for text in texts] for inputs, texts in _alike_typed(layer, schema)
    ]
    choices += [
        [(name, onnx.helper.np_dtype_to_tensor_dtype(_NUMPY[text])) for text in _TYPES]
        for name in places
    ]
    limit = _MOST_TYPES * (4 if places else 1)
    for chosen in islice(product(*choices), limit):
        inputs = list(layer.inputs)
        node = layer.node
        for place, kind in chosen:
            if isinstance(place, str):
                node = layer.with_attribute(place, kind)
                continue
            for at in place:
                value = inputs[at]
                assert value is not None
                inputs[at] = converted(value, kind)
        yield layer.changed("types", inputs=tuple(inputs), node=node)


def _alike_typed(
    layer: Layer, schema: onnx.defs.OpSchema
) -> Iterator[tuple[Sequence[int], Sequence[str]]]:
    """The places of inputs that have one type, with the types that they may have. What has one type
    in the seed keeps one: few networks mix, and seeds are there for what they mix."""
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    found: dict[np.dtype[Any], list[int]] = {}
    fitting: dict[np.dtype[Any], Sequence[str]] = {}
    for at, value in enumerate(layer.inputs):
        port = schema.inputs[min(at, len(schema.inputs) - 1)].type_str
        if value is not None and port in allowed:
            found.setdefault(value.dtype, []).append(at)
            known = fitting.get(value.dtype, _TYPES)
            fitting[value.dtype] = [text for text in known if text in allowed[port]]
    yield from ((places, fitting[dtype]) for dtype, places in found.items())


def converted(value: Array, dtype: np.dtype[Any]) -> Array:
    """The value in another type, as far as its numbers fit."""
    if value.dtype == dtype:
        return value
    with np.errstate(all="ignore"):
        return np.asarray(_converted(value, dtype))  # NumPy makes numbers of scalars


def _converted(value: Array, dtype: np.dtype[Any]) -> Any:
    wide = value.astype(np.float32) if value.dtype.kind == "V" else value
    if dtype.kind == "f" and dtype.itemsize > _FLOAT_BYTES:  # with more digits than float32 has
        return wide * (1 + _FINE * np.arange(1, wide.size + 1).reshape(wide.shape))
    if dtype.kind not in "iu":
        return wide.astype(dtype)
    if wide.dtype.kind == "f" and not (wide == np.rint(wide)).all():
        wide = np.rint(wide * 3)
    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    low, high = max(int(info.min), -(2**52)), min(int(info.max), 2**52)
    return np.clip(np.nan_to_num(wide.astype(np.float64)), low, high).astype(dtype)


# ---- ranks ----


def _ranks(layer: Layer) -> Iterator[Layer]:
    grown: Layer | None = layer
    step = 0
    while grown is not None:
        step += 1
        grown = _axis_added(grown, 1 + step % 2)
        if grown is not None:
            yield grown
    shrunk: Layer | None = layer
    while shrunk is not None:
        shrunk = _axis_dropped(shrunk)
        if shrunk is not None:
            yield shrunk


def _most_axes(layer: Layer) -> int:
    return max((value.ndim for value in layer.inputs if value is not None), default=0)


def _axis_added(layer: Layer, count: int) -> Layer | None:
    """With one more axis, of some elements, in front of all inputs that have the most axes."""
    most = _most_axes(layer)
    if most >= _MOST_RANK or all(value is None for value in layer.inputs):
        return None

    def grown(value: Array | None) -> Array | None:
        if value is None or value.ndim < most:
            return value
        return np.stack([np.roll(value.ravel(), at).reshape(value.shape) for at in range(count)])

    return _moved(layer.changed(f"axis{count}", inputs=tuple(map(grown, layer.inputs))), 1)


def _axis_dropped(layer: Layer) -> Layer | None:
    """Without the first axis of all inputs that have the most axes."""
    most = _most_axes(layer)
    longest = [value for value in layer.inputs if value is not None and value.ndim == most]
    if not most or any(not value.shape[0] for value in longest):
        return None
    inputs = [
        np.asarray(value[0]) if value is not None and value.ndim == most else value
        for value in layer.inputs
    ]
    return _moved(layer.changed("drop", inputs=tuple(inputs)), -1)


def _moved(layer: Layer, by: int) -> Layer:
    """With the axes that its attributes and inputs name moved, where they are counted from 0."""
    node = layer.node
    for name in _AXES:
        value = layer.attribute(name)
        if value is None:
            continue
        numbers = value if isinstance(value, list) else [value]
        moved = [each + by if each >= 0 else each for each in numbers]
        if name == "perm":
            moved = [0, *moved] if by > 0 else [each for each in moved if each >= 0]
        node = layer.with_attribute(name, moved if isinstance(value, list) else moved[0])
    schema = schema_of(layer.node.domain, layer.node.op_type, layer.opset)
    inputs = list(layer.inputs)
    for at, value in enumerate(inputs):
        named = schema.inputs[min(at, len(schema.inputs) - 1)].name if schema else ""
        if named == "axes" and value is not None:
            inputs[at] = np.where(value >= 0, value + by, value).astype(value.dtype)
    return layer.changed("", node=node, inputs=tuple(inputs))


# ---- values ----


def data_places(layer: Layer) -> frozenset[int]:
    """The places of the inputs whose numbers a layer computes with: those of the first input's
    type, or of the output's if the first is a condition."""
    schema = schema_of(layer.node.domain, layer.node.op_type, layer.opset)
    if schema is None or not layer.inputs:
        return frozenset(range(min(1, len(layer.inputs))))
    ports = [
        schema.inputs[min(at, len(schema.inputs) - 1)].type_str for at in range(len(layer.inputs))
    ]
    first = layer.inputs[0]
    is_condition = first is not None and first.dtype.kind == "b" and schema.outputs
    kind = schema.outputs[0].type_str if is_condition else ports[0]
    return frozenset(at for at, port in enumerate(ports) if port == kind)


def _values(layer: Layer) -> Iterator[Layer]:
    places = data_places(layer)
    random = np.random.default_rng(len(layer.seed))
    for name, make in _MAKERS.items():
        inputs = [
            make(value, random) if at in places and value is not None else value
            for at, value in enumerate(layer.inputs)
        ]
        yield layer.changed(name, inputs=tuple(inputs))


def _drawn(value: Array, random: np.random.Generator) -> Array:
    if value.dtype.kind in "iu":
        return converted(np.asarray(random.integers(-50, 50, value.shape)), value.dtype)
    if value.dtype.kind == "b":
        return np.asarray(random.integers(0, 2, value.shape)).astype(bool)
    return np.asarray(random.normal(0, 2, value.shape)).astype(value.dtype)


def _far(value: Array, random: np.random.Generator) -> Array:
    """Floats of very different sizes; integers that need nearly as many bits as a float has."""
    if value.dtype.kind in "iu":
        numbers = np.asarray(random.integers(2**20, 2**23, value.shape)) | 1
        return converted(numbers * random.choice([1, -1], value.shape), value.dtype)
    if value.dtype.kind == "b":
        return value
    few = np.array([0.0, -0.0, 1.0, -1.0, 1e4, -1e4, 1e-6, 30.0, -30.0, 0.5, 1.5, -2.5])
    return np.asarray(random.choice(few, value.shape)).astype(value.dtype)


_MAKERS: Final = {"drawn": _drawn, "far": _far}


def _broadcast(layer: Layer) -> Iterator[Layer]:
    if len(layer.inputs) < 2:
        return
    for at, value in enumerate(layer.inputs):
        if value is None or not value.size or value.ndim == 0:
            continue
        one = value.ravel()[:1]
        parts = {"scalar": one.reshape(()), "one": one, "row": value[(0,) * (value.ndim - 1)]}
        for name, part in parts.items():
            if part.shape != value.shape:
                inputs = [*layer.inputs]
                inputs[at] = np.asarray(part)
                yield layer.changed(f"{name}{at}", inputs=tuple(inputs))


# ---- attributes ----


def _attributes(layer: Layer, others: Mapping[str, Sequence[Any]]) -> Iterator[Layer]:
    schema = schema_of(layer.node.domain, layer.node.op_type, layer.opset)
    if schema is None:
        return
    for name, declared in schema.attributes.items():
        values = list(others.get(name, ()))
        given = declared.default_value
        default = onnx.helper.get_attribute_value(given) if given.type else None
        is_integer = declared.type == onnx.defs.OpSchema.AttrType.INT
        if is_integer and name not in QUANTITIES and default in (0, _MOST_FLAG, None):
            values += [0, 1]
        if name == "axis" and layer.inputs and layer.inputs[0] is not None:
            values += range(-layer.inputs[0].ndim, layer.inputs[0].ndim)
        if name in (*_CHOSEN_TYPES, _COUNT):
            continue
        now = layer.attribute(name)
        tried = [now]
        for value in values:
            # A list of another length belongs to other sizes. ONNX Runtime reads beyond some.
            fits = not isinstance(value, list) or len(value) == len(now or ())
            if fits and value not in tried:
                tried.append(value)
                yield layer.changed(f"{name}={value}", node=layer.with_attribute(name, value))
        if now is not None and not declared.required:
            yield layer.changed(f"no_{name}", node=layer.with_attribute(name, None))


def pool_of(seeds: Sequence[Layer]) -> dict[str, dict[str, list[Any]]]:
    """The values that attributes have in the seeds, by operator and name."""
    found: dict[str, dict[str, list[Any]]] = {}
    for seed in seeds:
        pool = found.setdefault(seed.operator, {})
        for attribute in seed.node.attribute:
            if attribute.type != onnx.AttributeProto.GRAPH:
                values = pool.setdefault(attribute.name, [])
                value = onnx.helper.get_attribute_value(attribute)
                if not any(_same(value, each) for each in values):
                    values.append(value)
    return found


def _same(one: Any, other: Any) -> bool:
    return bool(type(one) is type(other) and one == other)


def _fewer_outputs(layer: Layer) -> Iterator[Layer]:
    names = list(layer.node.output)
    if not 1 < len(names) <= 3:
        return
    for chosen in product([True, False], repeat=len(names)):
        kept = [name if keep else "" for name, keep in zip(names, chosen, strict=True)]
        if any(kept) and kept != names:
            node = onnx.NodeProto()
            node.CopyFrom(layer.node)
            while not kept[-1]:
                kept.pop()
            node.output[:] = kept
            yield layer.changed("outputs", node=node)
