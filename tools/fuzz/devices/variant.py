"""A mutated network with requests for it, and the folder that keeps one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
import onnx.printer
import onnx_ir as ir

from headrace.runtime.network.type_inference import infer_types
from headrace.testing.backend_cases.cases import read_value

_HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
Feed = Mapping[str, Any]
"""A request's inputs by name: arrays, lists for sequences, or None."""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One case of the fuzzer.

    Attributes:
        name: ``SEED:NUMBER``, which makes it again, or the name of its folder.
        origin: the name of ONNX's case that it was made from.
        operator: that ONNX's case tests.
        model: a serialised ModelProto.
        feeds: the requests to run, one after the other.
        mutations: what was changed, in words.
    """

    name: str
    origin: str
    operator: str
    model: bytes
    feeds: tuple[Feed, ...] = field(repr=False)
    mutations: tuple[str, ...] = ()

    @property
    def proto(self) -> onnx.ModelProto:
        """The model; a new one at each call, so you may change it."""
        return onnx.ModelProto.FromString(self.model)


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model with the types and shapes that ONNX can infer.

    `onnx.shape_inference` ends the process on some of the fuzzer's networks.

    Raises:
        Exception: of many kinds, if the model cannot be read or written as a graph.
    """
    graph = ir.from_proto(model)
    infer_types(graph)
    return ir.to_proto(graph)


def widened(variant: Variant) -> Variant:
    """The variant with floats of 32 bits instead of 16, in requests too; the variant itself if it
    has none of 16. Bodies stay as they are."""
    model = variant.proto
    graph = model.graph
    tensors = [*graph.initializer]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                tensors.append(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in _HALVES:
                attribute.i = onnx.TensorProto.FLOAT
    for tensor in tensors:
        if tensor.data_type in _HALVES:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for port in (*graph.input, *graph.output, *graph.value_info):
        if port.type.tensor_type.elem_type in _HALVES:
            port.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    data = model.SerializeToString()
    if data == variant.model:
        return variant
    feeds = tuple({name: _wide(value) for name, value in feed.items()} for feed in variant.feeds)
    return replace(variant, model=data, feeds=feeds)


def _wide(value: Any) -> Any:
    halves = (np.float16, ml_dtypes.bfloat16)
    if isinstance(value, np.ndarray) and value.dtype in halves:
        return value.astype(np.float32)
    return value


def write(variant: Variant, folder: Path) -> None:
    """Keeps the variant in the layout of ONNX's own test cases: ``model.onnx`` and, for each
    request, ``test_data_set_N/input_M.pb``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(variant.model)
    names = input_names(variant.proto)
    for number, feed in enumerate(variant.feeds):
        into = folder / f"test_data_set_{number}"
        into.mkdir(exist_ok=True)
        for index, name in enumerate(names):
            if feed.get(name) is not None:
                (into / f"input_{index}.pb").write_bytes(_proto_of(feed[name], name))


def read(folder: Path) -> Variant:
    """What `write` kept.

    Raises:
        OSError: the folder has no network.
    """
    data = (folder / "model.onnx").read_bytes()
    graph = onnx.ModelProto.FromString(data).graph
    names = input_names(onnx.ModelProto.FromString(data))
    types = {port.name: port.type for port in graph.input}
    sets = sorted(folder.glob("test_data_set_*"), key=lambda path: int(path.name.split("_")[-1]))
    feeds = []
    for each in sets:
        paths = {name: each / f"input_{index}.pb" for index, name in enumerate(names)}
        feeds.append(
            {
                name: read_value(path.read_bytes(), types[name])
                for name, path in paths.items()
                if path.exists()
            }
        )
    operator = graph.node[0].op_type if graph.node else ""
    return Variant(folder.name, folder.name, operator, data, tuple(feeds))


def input_names(model: onnx.ModelProto) -> list[str]:
    """The inputs that a request gives: those that have no initialiser."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [port.name for port in model.graph.input if port.name not in initializers]


def _proto_of(value: Any, name: str) -> bytes:
    if isinstance(value, list):
        data: bytes = onnx.numpy_helper.from_list(value, name).SerializeToString()
    else:
        data = onnx.numpy_helper.from_array(value, name).SerializeToString()
    return data


def snippet(variant: Variant, device: str, feeds: Sequence[Feed] | None = None) -> str:
    """Python code that makes the network and sends the requests to a server."""
    model = variant.proto
    lines = [
        "import ml_dtypes, numpy as np, onnx, onnx.parser",
        "from headrace.client import Client",
    ]
    if _has_text(model):
        text = onnx.printer.to_text(model).strip()
        lines.append(f'model = onnx.parser.parse_model("""\n{text}\n""")')
    else:
        lines.append('model = onnx.load("model.onnx")')
    loading = f'load_network(model, "{device}", name="network", replace=True)'
    lines.append(f'network = Client("localhost:9000").{loading}')
    for feed in variant.feeds if feeds is None else feeds:
        given = ", ".join(f"{name!r}: {_code(value)}" for name, value in feed.items())
        lines.append(f"print(network.infer({{{given}}}))")
    return "\n".join(lines)


def _has_text(model: onnx.ModelProto) -> bool:
    """Whether the printer's text of the model can be parsed again."""
    try:
        onnx.parser.parse_model(onnx.printer.to_text(model))
    except Exception:  # noqa: BLE001 - the parser raises errors of many kinds
        return False
    return True


def _code(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, list):
        return f"[{', '.join(map(_code, value))}]"
    dtype = value.dtype.name
    if dtype != "object":
        dtype = f"np.{dtype}" if hasattr(__import__("numpy"), dtype) else f"ml_dtypes.{dtype}"
    if value.size > 1 and (value.ravel() == value.ravel()[0]).all():
        return f"np.full({value.shape}, {_scalar(value.ravel()[0])}, {dtype})"
    if value.size > 64:
        return f"np.ndarray of {value.shape} {dtype}, in the folder"
    if not value.size:
        return f"np.zeros({value.shape}, {dtype})"
    flat = f"[{', '.join(map(_scalar, value.ravel()))}]"
    return f"np.array({flat}, {dtype}).reshape({value.shape})"


def _scalar(value: Any) -> str:
    if isinstance(value, (str, bytes)):
        return repr(value)
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, (bool, int, complex)):
        return repr(item)
    number = float(item)
    return repr(number) if number - number == 0 else f"float('{number}')"
