"""Serialised models, written without copying the weights.

Serialising a ModelProto copies every weight twice. To avoid that, writing serialises the small part
alone and puts the weights between its pieces.

The wire format: https://protobuf.dev/programming-guides/encoding/. Field numbers: onnx.proto.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, cast

import numpy as np
import onnx
import onnx_ir as ir

from headrace.protobuf.fields import header
from headrace.runtime.system.buffers import Buffer

INLINE_BYTES: Final = 4096
"""Data with fewer bytes stays in the small part."""

_RAW_DATA: Final = 9


def refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Makes `tensor` refer to data in the file `location`."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def as_field(number: int, payload: bytes) -> bytes:
    """A message with one length-delimited field, `number`, that holds `payload`."""
    return header(number, len(payload)) + payload


def serialize(model: ir.Model) -> Iterator[Buffer]:
    """The bytes of the ModelProto of `model`, in pieces that share the large initialisers' memory.

    It only reads `model`, so several threads may serialise the same model at once.
    """
    proto, large = _cut(model)
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    heads = [_tensor_head(name, tensor) for name, tensor in large]
    size = len(graph) + sum(
        len(head) + len(header(5, len(head) + int(tensor.nbytes))) + int(tensor.nbytes)
        for head, (_, tensor) in zip(heads, large, strict=True)
    )
    yield proto.SerializeToString()
    yield header(7, size)
    yield graph
    for head, (_, tensor) in zip(heads, large, strict=True):
        yield header(5, len(head) + int(tensor.nbytes))
        yield head
        yield data(tensor)


def serialize_apart(model: ir.Model, location: str) -> tuple[bytes, list[memoryview]]:
    """The bytes of the ModelProto of `model` with external large initialisers, and views of their
    data. The views belong one after the other into the file `location` beside the model."""
    proto, large = _cut(model)
    offset = 0
    for name, tensor in large:
        external = onnx.TensorProto(
            dims=list(tensor.shape.numpy()), data_type=tensor.dtype.value, name=name
        )
        refer(external, location, offset, int(tensor.nbytes))
        proto.graph.initializer.append(external)
        offset += int(tensor.nbytes)
    return proto.SerializeToString(), [data(tensor) for _, tensor in large]


def large_bytes(model: ir.Model) -> int:
    """The bytes of the large initialisers' data, which `serialize` shares."""
    values = model.graph.initializers.values()
    return sum(int(tensor.nbytes) for value in values if (tensor := _beside(value)) is not None)


def serialize_without(model: ir.Model, left_out: Collection[str]) -> onnx.ModelProto:
    """The ModelProto without these initialisers of the main graph. It makes no copy of the graph.
    Its bytes, and those of another ModelProto that has the initialisers, are together the bytes of
    the whole."""
    graph = model.graph
    kept = [value for name, value in graph.initializers.items() if name not in left_out]
    view = ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=graph,
        initializers=kept,
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    rest = ir.Model(
        cast(ir.Graph, view),
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=[*model.functions.values()],
        metadata_props=model.metadata_props,
        device_configurations=model.device_configurations,
    )
    return ir.serde.serialize_model(rest)


def _cut(model: ir.Model) -> tuple[onnx.ModelProto, list[tuple[str, ir.TensorProtocol]]]:
    """The ModelProto without the large initialisers, and the large initialisers."""
    beside = {name: _beside(value) for name, value in model.graph.initializers.items()}
    large = [(name, tensor) for name, tensor in beside.items() if tensor is not None]
    return serialize_without(model, dict(large)), large


def _beside(value: ir.Value) -> ir.TensorProtocol | None:
    """The initialiser's tensor if it is large and can be stored beside the rest; otherwise None."""
    tensor = value.const_value
    if (
        tensor is None
        or tensor.nbytes < INLINE_BYTES
        or tensor.dtype.is_string()
        or tensor.dtype.bitwidth < 8  # these are packed, and NumPy cannot view packed elements
        or value.metadata_props
        or value.meta
    ):
        return None
    return tensor


def data(tensor: ir.TensorProtocol) -> memoryview:
    """The bytes of a tensor whose elements have whole bytes."""
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data


def _tensor_head(name: str, tensor: ir.TensorProtocol) -> bytes:
    """A serialised tensor without its data, followed by the header of the data.

    The tensor gets the value's name, because clones of a network share tensors and may rename
    values.
    """
    proto = onnx.TensorProto(
        dims=list(tensor.shape.numpy()), data_type=tensor.dtype.value, name=name
    )
    return proto.SerializeToString() + header(_RAW_DATA, int(tensor.nbytes))
