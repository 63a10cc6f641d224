"""Serialised models, read and written without copying the weights.

Parsing a ModelProto copies every weight into the parsed message, and serialising a ModelProto
copies them twice. To avoid that, reading walks the wire format once and replaces each large
`raw_data` by a short token. The token stands for the data's place in the original bytes. It is the
value of the same field, so protobuf treats it like the data when fields occur twice or in another
order. The walk also counts, so that no model is parsed that exceeds the limits of memory and nodes.
Writing serialises the small part alone and puts the weights between its pieces.

The wire format: https://protobuf.dev/programming-guides/encoding/. Field numbers: onnx.proto.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.parts import read_varint, varint
from headrace.runtime.system.buffers import Buffer, joined
from headrace.runtime.system.graph_memory import watched

INLINE_BYTES: Final = 4096
"""Raw data with fewer bytes is not replaced by a token."""

Ranges: TypeAlias = Mapping[bytes, tuple[int, int]]
"""Maps each token to the first byte and the length of the data that it stands for."""

_TOKEN_BYTES = 16

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _FUNCTION, _TENSOR, _SPARSE, _TYPES = range(8)
_RAW_DATA = 9
_CHILDREN: Final[Mapping[int, Mapping[int, int]]] = {
    _MODEL: {7: _GRAPH, 20: _TYPES, 25: _FUNCTION, 26: _TYPES},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE, **dict.fromkeys((11, 12, 13, 14), _TYPES)},
    _NODE: {5: _ATTRIBUTE, 10: _TYPES},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 14: _TYPES, 15: _TYPES}
    | {22: _SPARSE, 23: _SPARSE},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE, 12: _TYPES},
    _TENSOR: {},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
}
"""For each message, the fields whose messages hold further messages. The messages of types are
small and many, so the walk skips them and counts the worst case, one field for two bytes."""

_PACKED: Final[Mapping[int, Mapping[int, int]]] = {
    _ATTRIBUTE: {8: 8},
    _TENSOR: {1: 8, 5: 4, 7: 8, 11: 8},
}
"""The fields that hold numbers of any length, and the bytes of each number once it is parsed."""


def strip(data: Buffer, limits: Limits) -> tuple[Buffer, Ranges]:
    """Returns `data` with a token in place of each large tensor's raw data, and where in `data` the
    raw data is.

    The tokens are random, so that a model's own data cannot be mistaken for a token.

    Raises:
        InvalidModel: the bytes are not protobuf, end too early, or exceed `limits`.
    """
    if not data:
        raise InvalidModel("the model is empty: send the bytes of an .onnx file", field="model")
    if len(data) > limits.model_bytes:
        raise InvalidModel(
            f"the model has {len(data)} bytes; at most {limits.model_bytes} are allowed (the "
            "server's max_model_bytes); put the model into the server's model repository, with its "
            "weights as external data",
            field="model",
        )
    stripper = _Stripper(data, limits)
    try:
        pieces = stripper.message(_MODEL, 0, len(data), 0)
    except IndexError:  # a length or number runs over the end of the bytes
        raise _malformed(len(data)) from None
    return joined(pieces) if pieces else data, stripper.ranges


class _Stripper:
    def __init__(self, data: Buffer, limits: Limits) -> None:
        self._data = data
        self._view = memoryview(data)
        self._limits = limits
        self._fields = limits.fields
        self._structure = limits.structure_bytes
        self._nodes = limits.nodes
        self.ranges: dict[bytes, tuple[int, int]] = {}

    def message(
        self, kind: int, position: int, end: int, depth: int
    ) -> list[bytes | memoryview] | None:
        """The pieces that replace ``data[position:end]``; None if it stays unchanged."""
        data = self._data
        children = _CHILDREN[kind]
        pieces: list[bytes | memoryview] = []
        kept = position
        fields = small = 0
        packed = _PACKED.get(kind, {})
        if kind == _NODE:
            self._nodes -= 1
            if self._nodes < 0:
                raise InvalidModel(
                    f"the model has more than {self._limits.nodes} nodes", field="model"
                )
        if depth > 3 * self._limits.depth + 4:  # graph, node, attribute, graph
            raise InvalidModel(
                f"graphs are nested more than {self._limits.depth} deep", field="model"
            )
        while position < end:
            start = position
            fields += 1
            tag = data[position]
            position += 1
            if tag > 127:
                tag, position = read_varint(data, start)
            wire = tag & 7
            if wire == _LENGTH:
                length = data[position]
                position += 1
                if length > 127:
                    length, position = read_varint(data, position - 1)
                stop = position + length
                if stop > end:
                    raise _malformed(position)
                number = tag >> 3
                child = children.get(number)
                if child is None:
                    if kind == _TENSOR and number == _RAW_DATA and length >= INLINE_BYTES:
                        token = secrets.token_bytes(_TOKEN_BYTES)
                        self.ranges[token] = position, length
                        header = _header(_RAW_DATA, _TOKEN_BYTES)
                        pieces += (self._view[kept:start], header, token)
                        kept = stop
                    elif number in packed:
                        small += packed[number] * _numbers(self._view[position:stop])
                    else:
                        small += length
                elif child == _TYPES:
                    fields += length // 2
                    small += length
                else:
                    replaced = self.message(child, position, stop, depth + 1)
                    if replaced:
                        size = sum(map(len, replaced))
                        pieces += (self._view[kept:start], _header(number, size), *replaced)
                        kept = stop
                position = stop
            elif wire == _VARINT:
                while data[position] > 127:
                    position += 1
                position += 1
            elif wire == _FIXED32:
                position += 4
            elif wire == _FIXED64:
                position += 8
            else:
                raise _malformed(start)
        if position != end:
            raise _malformed(end)
        self._spend(fields, small)
        if pieces:
            pieces.append(self._view[kept:end])
        return pieces or None

    def _spend(self, fields: int, structure_bytes: int) -> None:
        self._fields -= fields
        self._structure -= structure_bytes
        if self._fields < 0:
            raise InvalidModel(
                f"the model holds more than {self._limits.fields} protobuf fields", field="model"
            )
        if self._structure < 0:
            raise InvalidModel(
                f"the model holds more than {self._limits.structure_bytes} bytes besides its "
                "tensors' raw data; store weights as raw data and drop doc strings",
                field="model",
            )


def _numbers(packed: memoryview) -> int:
    """Counts the numbers. Only the last byte of each number is less than 128."""
    parts = range(0, len(packed), 2**20)
    return sum(
        int(np.count_nonzero(np.frombuffer(packed[at : at + 2**20], np.uint8) < 128))
        for at in parts
    )


def _malformed(position: int) -> InvalidModel:
    return InvalidModel(
        f"not a serialised ONNX model, or cut short: the bytes are not valid near byte "
        f"{position}; send the whole .onnx file as it is",
        field="model",
    )


def refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Makes `tensor` refer to data in the file `location`."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _header(number: int, length: int) -> bytes:
    """The tag and length of the field `number` with a payload of `length` bytes."""
    return varint(number << 3 | _LENGTH) + varint(length)


def as_field(number: int, payload: bytes) -> bytes:
    """A message with one length-delimited field, `number`, that holds `payload`."""
    return _header(number, len(payload)) + payload


def serialize(model: ir.Model) -> Iterator[Buffer]:
    """The bytes of the ModelProto of `model`, in pieces that share the large initialisers' memory.

    It only reads `model`, so several threads may serialise the same model at once.
    """
    proto, large = _cut(model)
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    heads = [_tensor_head(name, tensor) for name, tensor in large]
    size = len(graph) + sum(
        len(head) + len(_header(5, len(head) + int(tensor.nbytes))) + int(tensor.nbytes)
        for head, (_, tensor) in zip(heads, large, strict=True)
    )
    yield proto.SerializeToString()
    yield _header(7, size)
    yield graph
    for head, (_, tensor) in zip(heads, large, strict=True):
        yield _header(5, len(head) + int(tensor.nbytes))
        yield head
        yield _data(tensor)


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
    return proto.SerializeToString(), [_data(tensor) for _, tensor in large]


def large_bytes(model: ir.Model) -> int:
    """The bytes of the large initialisers' data, which `serialize` shares."""
    values = model.graph.initializers.values()
    return sum(int(tensor.nbytes) for value in values if (tensor := _beside(value)) is not None)


def _cut(model: ir.Model) -> tuple[onnx.ModelProto, list[tuple[str, ir.TensorProtocol]]]:
    """The ModelProto without the large initialisers, and the large initialisers."""
    small = watched(model.clone())
    large: list[tuple[str, ir.TensorProtocol]] = []
    for name, value in list(small.graph.initializers.items()):
        tensor = _beside(value)
        if tensor is not None:
            large.append((name, tensor))
            del small.graph.initializers[name]
    return ir.to_proto(small), large


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


def _data(tensor: ir.TensorProtocol) -> memoryview:
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data


def _tensor_head(name: str, tensor: ir.TensorProtocol) -> bytes:
    """A serialised tensor without its data, followed by the header of the data.

    The tensor gets the value's name, because clones of a network share tensors and may rename
    values.
    """
    proto = onnx.TensorProto(
        dims=list(tensor.shape.numpy()), data_type=tensor.dtype.value, name=name
    )
    return proto.SerializeToString() + _header(_RAW_DATA, int(tensor.nbytes))
