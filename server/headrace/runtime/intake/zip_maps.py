"""Makes matrices of the maps that converters of tabular models put at the end of a classifier.

A ZipMap makes of each row of scores a map from class to score. No request carries maps, and the
matrix says the same if its columns are known. So a ZipMap whose result nothing but the network's
caller reads becomes an Identity, and the output tells the classes of its columns.

https://onnx.ai/onnx/operators/onnx_aionnxml_ZipMap.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import onnx

Classes: TypeAlias = tuple[int, ...] | tuple[str, ...]
"""What each column of an output stands for: numbers or names."""

CLASSES: Final = "classes"
"""Metadata of an output: its classes, as a JSON list. A model may have it from elsewhere."""

MOST_TOLD: Final = 4096
_MOST_BYTES: Final = 64 * 1024
_OPSET: Final = 13  # of Identity, for a network with no other layer of ONNX's own
_FLOAT: Final = onnx.TensorProto.FLOAT
WAY_OUT: Final = (
    "no request carries maps; convert a classifier without one (skl2onnx: "
    "options={'zipmap': False}), and let a network that takes a map begin behind its "
    "DictVectorizer or CastMap, with a tensor"
)


def replace_zip_maps(model: onnx.ModelProto) -> Mapping[str, Classes]:
    """Replaces each ZipMap that only the outputs of `model` read, also through an Identity.

    Returns:
        The outputs that are matrices now, each with its classes.
    """
    graph = model.graph
    if not any(_has_maps(output.type) for output in graph.output):
        return {}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in _read(node):
            readers.setdefault(name, []).append(node)
    outputs = {output.name: output for output in graph.output}
    matrices: dict[str, Classes] = {}
    made: set[str] = set()
    for node in graph.node:
        classes = _classes(node) if _is_zip_map(node) else ()
        if not classes or len(node.input) != 1 or len(node.output) != 1:
            continue
        names = _passed_on(node.output[0], readers)
        if names is None:
            continue
        node.op_type, node.domain = "Identity", ""
        node.ClearField("attribute")
        made.update(names)
        for name in names & outputs.keys():
            _become_matrix(outputs[name], len(classes))
            matrices[name] = classes
    if matrices and not any(opset.domain in ("", "ai.onnx") for opset in model.opset_import):
        model.opset_import.add(version=_OPSET)
    kept = [value for value in graph.value_info if value.name not in made]
    if len(kept) != len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(kept)
    return matrices


def note(output: str, classes: Classes) -> str:
    """Tells a caller that an output is a matrix, and where its classes are."""
    where = (
        "its port tells their classes"
        if as_metadata(classes)
        else f"its {len(classes)} classes are too many or too long to be told"
    )
    return (
        f"output {output!r} is a matrix of scores and not a list of maps (ZipMap): it has a column "
        f"for each class, and {where}"
    )


def as_metadata(classes: Classes) -> str:
    """The classes as the metadata of an output; empty if they are too many or too long."""
    text = json.dumps(classes) if classes else ""
    return text if len(classes) <= MOST_TOLD and len(text) <= _MOST_BYTES else ""


def from_metadata(text: str) -> Classes:
    """The classes of an output. Empty if the text is not a list of them, or too long."""
    if not text or len(text) > _MOST_BYTES:
        return ()
    try:
        names = json.loads(text)
        json.dumps(names, ensure_ascii=False).encode()  # a reply cannot carry half a character
    except (ValueError, RecursionError):
        return ()
    if not isinstance(names, list) or len(names) > MOST_TOLD:
        return ()
    if all(isinstance(name, str) for name in names):
        return tuple(names)
    numbers = all(type(name) is int and -(2**63) <= name < 2**63 for name in names)
    return tuple(names) if numbers else ()


def _has_maps(kind: onnx.TypeProto) -> bool:
    while kind.WhichOneof("value") == "sequence_type":
        kind = kind.sequence_type.elem_type
    return bool(kind.WhichOneof("value") == "map_type")


def _is_zip_map(node: onnx.NodeProto) -> bool:
    return node.op_type == "ZipMap" and node.domain == "ai.onnx.ml"


def _read(node: onnx.NodeProto) -> Sequence[str]:
    """The values that the node and its bodies read."""
    names = [*node.input]
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for inner in body.node:
                names += _read(inner)
            names += (output.name for output in body.output)
    return names


def _passed_on(name: str, readers: Mapping[str, Sequence[onnx.NodeProto]]) -> set[str] | None:
    """The values that equal the value; None if a layer computes with one of them."""
    names, waiting = {name}, [name]
    while waiting:
        for reader in readers.get(waiting.pop(), ()):
            passes = reader.op_type == "Identity" and reader.domain in ("", "ai.onnx")
            if not passes or len(reader.output) != 1:
                return None
            if reader.output[0] not in names:
                names.add(reader.output[0])
                waiting.append(reader.output[0])
    return names


def _classes(node: onnx.NodeProto) -> Classes:
    """The node's classes; none if it does not name them in one way."""
    given = {attribute.name: attribute for attribute in node.attribute}
    numbers, names = (given.get(f"classlabels_{kind}") for kind in ("int64s", "strings"))
    if numbers is not None and names is None:
        return tuple(numbers.ints)
    if names is not None and numbers is None:
        try:
            return tuple(string.decode() for string in names.strings)
        except UnicodeDecodeError:
            return ()
    return ()


def _become_matrix(output: onnx.ValueInfoProto, columns: int) -> None:
    output.ClearField("type")
    kind = output.type.tensor_type
    kind.elem_type = _FLOAT
    kind.shape.dim.add()
    kind.shape.dim.add(dim_value=columns)
