"""The layers that all others are made from: ONNX's backend cases, and some of real networks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from headrace.testing.backend_cases.cases import BackendCase, collect
from tools.claims.layer import Array, Layer

_TEXTS = Path(__file__).with_name("seeds.txt")
_NUMBERS: Mapping[int, type[np.generic]] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.INT32: np.int32,
    onnx.TensorProto.INT8: np.int8,
    onnx.TensorProto.UINT8: np.uint8,
    onnx.TensorProto.BOOL: np.bool_,
    onnx.TensorProto.FLOAT16: np.float16,
}


def seeds() -> list[Layer]:
    """All of them, in the same order each time."""
    return [*_of_cases(), *_of_texts()]


def _of_cases() -> Iterator[Layer]:
    for case in collect():
        layer = _layer(case) if case.kind == "node" and not case.random else None
        if layer is not None:
            yield layer


def _layer(case: BackendCase) -> Layer | None:
    """The case's layer; None if it has several, or values that are no tensors of numbers."""
    model = onnx.load_from_string(case.model)
    if len(model.graph.node) != 1 or model.functions or model.graph.initializer:
        return None
    (node,) = model.graph.node
    given, expected = case.data_sets[0]
    values = [given.get(name) if name else None for name in node.input]
    known = [value for value in (*values, *expected.values()) if value is not None]
    if any(not isinstance(each, np.ndarray) or each.dtype == object for each in known):
        return None
    opsets = {each.domain: each.version for each in model.opset_import}
    places = {name: at for at, name in enumerate(node.input) if name}
    constants = {at for name, at in places.items() if name not in given}
    if constants or any(
        value is None and name for name, value in zip(node.input, values, strict=True)
    ):
        return None
    return Layer(case.name, node, opsets[node.domain], tuple(values), expected=expected)


def _of_texts() -> Iterator[Layer]:
    """A line is ``(inputs) => (outputs) Operator<attributes> @opset``. A value may follow an input,
    one for all elements or all of them; others are drawn at random."""
    for line in _TEXTS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield seed(line)


def seed(line: str) -> Layer:
    ports, _, rest = line.partition(" => ")
    outputs, _, call = rest.partition(") ")
    call, _, opset = call.rpartition(" @")
    declared, values = [], []
    for at, port in enumerate(filter(None, ports.strip("()").split("; "))):
        kind, _, given = port.partition(" = ")
        declared.append(f"{kind} input{at}" if kind != "-" else "")
        values.append(given.split())
    names = ", ".join(f"input{at}" if each else '""' for at, each in enumerate(declared))
    results = ", ".join(
        f"output{at}" if each != "-" else '""'
        for at, each in enumerate(outputs.strip("()").split(", "))
    )
    operator, _, attributes = call.partition("<")
    domain = operator.rpartition(".")[0]
    imports = f'"{domain}": 1, "": 21' if domain else f'"": {opset}'
    called = operator + (f"<{attributes}" if attributes else "")
    text = (
        f"<ir_version: 10, opset_import: [{imports}]> g ({', '.join(filter(None, declared))}) "
        f"=> () {{ {results} = {called}({names}) }}"
    )
    model = onnx.parser.parse_model(text)
    kinds = {port.name: port.type.tensor_type for port in model.graph.input}
    inputs = tuple(
        _value(kinds[f"input{at}"], values[at], line) if each else None
        for at, each in enumerate(declared)
    )
    return Layer(line, model.graph.node[0], int(opset) if not domain else 1, inputs)


def _value(kind: onnx.TypeProto.Tensor, given: list[str], line: str) -> Array:
    shape = [axis.dim_value for axis in kind.shape.dim]
    dtype = np.dtype(_NUMBERS[kind.elem_type])
    if given:
        numbers = np.array([*map(float, given)]).astype(dtype)
        return np.full(shape, numbers[0]) if len(given) == 1 else numbers.reshape(shape)
    random = np.random.default_rng(zlib.crc32(line.encode()))
    if dtype.kind == "f":
        return random.uniform(-1, 1, shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 5, shape).astype(dtype)
