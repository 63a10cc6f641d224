"""Random changes to a network and its requests. Each is a pure function of its random generator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import defs, helper

from tools.fuzz.devices.values import INTEGERS, Generator, changed, converted, resized
from tools.fuzz.devices.variant import input_names

SIZES = (0, 0, 0, 1, 1, 2, 3, 5, 7, 17, 33)
MOST_ELEMENTS = 40_000
_TYPES = "float double float16 bfloat16 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"


@dataclass(slots=True)
class Draft:
    """A network and a request in the making.

    Attributes:
        vocabulary: attribute values that ONNX's cases use, by operator and attribute name.
        done: what was changed so far, in words.
    """

    model: onnx.ModelProto
    feed: dict[str, Any]
    vocabulary: Mapping[tuple[str, str], Sequence[onnx.AttributeProto]]
    done: list[str]

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: each for name, each in self.feed.items() if isinstance(each, np.ndarray)}


def mutate_attribute(draft: Draft, rng: Generator) -> None:
    """Changes, adds or drops one attribute of one node, within its type."""
    nodes = [node for node in draft.model.graph.node if node.op_type != "Constant"]
    if not nodes:
        return
    node = nodes[rng.integers(len(nodes))]
    schema = _schema(draft.model, node)
    present = {attribute.name: attribute for attribute in node.attribute}
    names = sorted({*present, *(schema.attributes if schema is not None else ())})
    if not names:
        return
    name = names[rng.integers(len(names))]
    known = draft.vocabulary.get((node.op_type, name), ())
    if name not in present or (known and rng.integers(3) == 0):
        if known:
            if name in present:
                node.attribute.remove(present[name])
            node.attribute.append(known[int(rng.integers(len(known)))])
            draft.done.append(f"{node.op_type}.{name} set")
        return
    if known and all(each.type == onnx.AttributeProto.INT and each.i in (0, 1) for each in known):
        present[name].i = 1 - present[name].i  # a switch: ONNX gives other numbers no meaning
        draft.done.append(f"{node.op_type}.{name} switched")
        return
    if rng.integers(6) == 0:
        node.attribute.remove(present[name])
        draft.done.append(f"{node.op_type}.{name} dropped")
        return
    if _change_attribute(present[name], rng):
        draft.done.append(f"{node.op_type}.{name} changed")


def _change_attribute(attribute: onnx.AttributeProto, rng: Generator) -> bool:
    kind = onnx.AttributeProto
    if attribute.type == kind.INT:
        attribute.i = _integer(attribute.i, rng)
    elif attribute.type == kind.FLOAT:
        attribute.f = float(rng.choice([0.0, -1.0, 1.0, 2.5, 1e-30, 1e30, np.nan, np.inf]))
    elif attribute.type == kind.INTS and attribute.ints:
        at = int(rng.integers(len(attribute.ints)))
        if rng.integers(5) == 0:
            values = [*attribute.ints]
            values = values[:at] if rng.integers(2) else [*values, values[at]]
            del attribute.ints[:]
            attribute.ints.extend(values)
        else:
            attribute.ints[at] = _integer(attribute.ints[at], rng)
    elif attribute.type == kind.FLOATS and attribute.floats:
        at = int(rng.integers(len(attribute.floats)))
        attribute.floats[at] = float(rng.choice([0.0, -1.0, 1.0, 2.5, 1e30, np.nan, np.inf]))
    elif attribute.type == kind.TENSOR:
        array = onnx.numpy_helper.to_array(attribute.t)
        if array.dtype.kind in "SU":
            return False
        attribute.t.CopyFrom(onnx.numpy_helper.from_array(changed(array, rng), attribute.t.name))
    else:
        return False
    return True


def _integer(value: int, rng: Generator) -> int:
    near = (value + 1, value - 1, -value, 2 * value + 1, 0, 1, 2, 3)
    known = near if rng.integers(4) else INTEGERS
    return int(known[int(rng.integers(len(known)))])


def mutate_type(draft: Draft, rng: Generator) -> None:
    """Gives all inputs and outputs of one of the operator's type variables another type."""
    graph = draft.model.graph
    if len(graph.node) != 1:
        return
    node = graph.node[0]
    schema = _schema(draft.model, node)
    if schema is None or not schema.type_constraints:
        return
    variable = schema.type_constraints[int(rng.integers(len(schema.type_constraints)))]
    allowed = [t for t in _TYPES.split() if f"tensor({t})" in variable.allowed_type_strs]
    if not allowed:
        return
    word = allowed[rng.integers(len(allowed))]
    element = onnx.TensorProto.DataType.Value("FLOAT" if word == "float" else word.upper())
    dtype = helper.tensor_dtype_to_np_dtype(element)
    last = len(schema.inputs) - 1
    given = (schema.inputs[min(at, last)].type_str for at, name in enumerate(node.input) if name)
    if variable.type_param_str not in given:
        return  # no input says which type it is
    ports = {port.name: port for port in (*graph.input, *graph.output)}
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for index, name in enumerate(names):
            formal = formals[min(index, len(formals) - 1)]
            if formal.type_str != variable.type_param_str or name not in ports:
                continue
            if not ports[name].type.HasField("tensor_type"):
                return
            ports[name].type.tensor_type.elem_type = element
            if isinstance(draft.feed.get(name), np.ndarray):
                draft.feed[name] = converted(draft.feed[name], dtype)
    draft.done.append(f"{variable.type_param_str} is {word}")


def mutate_sizes(draft: Draft, rng: Generator) -> None:
    """Resizes one axis of an input, or all axes of a size. Then one input may get a size of 1."""
    arrays = draft.arrays()
    axes = [(name, axis) for name, array in arrays.items() for axis in range(array.ndim)]
    if not axes:
        return
    name, axis = axes[rng.integers(len(axes))]
    old, together = arrays[name].shape[axis], bool(rng.integers(5) > 1)
    new = int(rng.choice([*SIZES, old + 1, max(0, old - 1), 2 * old]))
    repeated = [*arrays, *[None] * 3 * len(arrays)][rng.integers(4 * len(arrays))]
    for other, array in arrays.items():
        sizes = {old: 1 if other == repeated else new} if together else {}
        shape = [sizes.get(size, size) for size in array.shape]
        if (other, together) == (name, False):
            shape[axis] = new
        if int(np.prod(shape)) <= MOST_ELEMENTS:
            draft.feed[other] = resized(array, shape)
    where = f"all sizes of {old}" if together else f"axis {axis} of {name}"
    draft.done.append(f"{where}: {new}" + f", 1 in {repeated}" * bool(together and repeated))


def mutate_rank(draft: Draft, rng: Generator) -> None:
    """Adds an axis of one to an input, or drops one."""
    arrays = draft.arrays()
    if not arrays:
        return
    name = [*arrays][rng.integers(len(arrays))]
    array = arrays[name]
    if array.ndim and rng.integers(2):
        row = array[:1] if array.shape[0] else resized(array, (1, *array.shape[1:]))
        draft.feed[name] = row.reshape(array.shape[1:])
    else:
        draft.feed[name] = array[np.newaxis]
    draft.done.append(f"rank of {name}: {draft.feed[name].ndim}")


def mutate_values(draft: Draft, rng: Generator) -> None:
    """Changes values of one input or of all."""
    arrays = draft.arrays()
    if not arrays:
        return
    names = [*arrays]
    if rng.integers(3):
        names = [names[rng.integers(len(names))]]
    sizes = sorted({size for array in arrays.values() for size in array.shape})
    for name in names:
        draft.feed[name] = changed(arrays[name], rng, sizes)
    draft.done.append(f"values of {', '.join(names)}")


def drop_input(draft: Draft, rng: Generator) -> None:
    """Leaves out one of a node's optional inputs."""
    graph = draft.model.graph
    if len(graph.node) != 1 or not graph.node[0].input:
        return
    node = graph.node[0]
    schema = _schema(draft.model, node)
    if schema is None:
        return
    optional = defs.OpSchema.FormalParameterOption.Optional
    droppable = [
        index
        for index, formal in enumerate(schema.inputs)
        if index < len(node.input) and formal.option == optional and node.input[index]
    ]
    if not droppable:
        return
    index = droppable[rng.integers(len(droppable))]
    name = node.input[index]
    node.input[index] = ""
    while node.input and not node.input[-1]:
        del node.input[-1]
    if name not in node.input:
        _drop_port(graph, name)
        draft.feed.pop(name, None)
    draft.done.append(f"{name} left out")


def make_constants(draft: Draft, rng: Generator) -> None:
    """Turns some inputs into initialisers, and initialisers into inputs."""
    graph = draft.model.graph
    for tensor in [*graph.initializer]:
        if rng.integers(2) and tensor.name not in draft.feed:
            array = onnx.numpy_helper.to_array(tensor)
            graph.initializer.remove(tensor)
            _drop_port(graph, tensor.name)
            port = helper.make_tensor_value_info(tensor.name, tensor.data_type, array.shape)
            graph.input.append(port)
            draft.feed[tensor.name] = array
            draft.done.append(f"{tensor.name} given")
    names = [name for name in draft.arrays() if name in input_names(draft.model)]
    for name in names:
        if rng.integers(2) == 0 and len(draft.feed) > (rng.integers(8) > 0):
            graph.initializer.append(onnx.numpy_helper.from_array(draft.feed.pop(name), name))
            if rng.integers(8):
                _drop_port(graph, name)
            else:  # one that a caller may override
                (port,) = (each for each in graph.input if each.name == name)
                _declare(port, graph.initializer[-1].dims, 0)
            draft.done.append(f"{name} constant")


def declare(draft: Draft, rng: Generator) -> bool:
    """Declares the shapes of inputs and outputs anew: fixed, with symbols, with dimensions that
    are not known, or not at all. Returns whether requests may have other sizes."""
    graph = draft.model.graph
    way = int(rng.choice(4, p=[0.4, 0.3, 0.1, 0.2]))
    for port in graph.input:
        array = draft.feed.get(port.name)
        if isinstance(array, np.ndarray) and port.type.HasField("tensor_type"):
            mixed = way if rng.integers(5) else int(rng.integers(4))
            _declare(port, array.shape, mixed)
    for port in graph.output:
        if port.type.HasField("tensor_type"):
            port.type.tensor_type.ClearField("shape")
    del graph.value_info[:]
    draft.done.append(("fixed", "symbols", "unknown sizes", "unknown ranks")[way])
    return way > 0


def _declare(port: onnx.ValueInfoProto, shape: Sequence[int], way: int) -> None:
    declared = port.type.tensor_type
    declared.ClearField("shape")
    if way == 3:
        return
    declared.shape.SetInParent()
    for axis, size in enumerate(shape):
        dimension = declared.shape.dim.add()
        if way == 0:
            dimension.dim_value = size
        elif way == 1:
            dimension.dim_param = f"{port.name}_{axis}"


def _schema(model: onnx.ModelProto, node: onnx.NodeProto) -> defs.OpSchema | None:
    versions = {each.domain: each.version for each in model.opset_import}
    try:
        return defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return None


def _drop_port(graph: onnx.GraphProto, name: str) -> None:
    for port in [each for each in graph.input if each.name == name]:
        graph.input.remove(port)


def vocabulary(
    models: Iterable[onnx.ModelProto],
) -> dict[tuple[str, str], list[onnx.AttributeProto]]:
    """The attribute values that the networks use, each once, by operator and attribute name."""
    found: dict[tuple[str, str], dict[bytes, onnx.AttributeProto]] = {}
    for model in models:
        for node in model.graph.node:
            if node.op_type == "Constant":
                continue
            for attribute in node.attribute:
                if attribute.type != onnx.AttributeProto.GRAPH:
                    key = (node.op_type, attribute.name)
                    found.setdefault(key, {})[attribute.SerializeToString()] = attribute
    return {key: [*values.values()] for key, values in sorted(found.items())}
