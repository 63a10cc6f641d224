"""Takes the large data of tensors out of serialised models, before they are parsed.

Parsing a ModelProto copies every weight into the parsed message. To avoid that, reading walks the
wire format once and replaces the large data of each tensor by a short token in `raw_data`. The
token stands for the data's place in the original bytes. The walk also counts, so that no model is
parsed that exceeds the limits of memory and nodes.

The wire format: https://protobuf.dev/programming-guides/encoding/. Field numbers: onnx.proto.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from headrace.protobuf.fields import LENGTH_DELIMITED, header, read_field
from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.numbers import count_varints
from headrace.runtime.intake.onnx_bytes import INLINE_BYTES
from headrace.runtime.system.buffers import Buffer, joined


class TensorSpan(NamedTuple):
    """Where a tensor's data is in a serialised model.

    Attributes:
        start: its first byte.
        length: its bytes.
        field: the name of the tensor's field that holds it.
    """

    start: int
    length: int
    field: str


Ranges: TypeAlias = Mapping[bytes, TensorSpan]
"""Maps each token to the data that it stands for."""

_TOKEN_BYTES = 16

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

_DATA: Final[Mapping[int, Mapping[int, str]]] = {
    _TENSOR: {
        _RAW_DATA: "raw_data",
        4: "float_data",
        5: "int32_data",
        7: "int64_data",
        10: "double_data",
        11: "uint64_data",
    }
}
"""The fields that hold a tensor's data."""


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
        raise _malformed(len(data) - 1) from None
    return joined(pieces) if pieces else data, stripper.ranges


class _Stripper:
    def __init__(self, data: Buffer, limits: Limits) -> None:
        self._data = data
        self._view = memoryview(data)
        self._limits = limits
        self._fields = limits.fields
        self._structure = limits.structure_bytes
        self._nodes = limits.nodes
        self.ranges: dict[bytes, TensorSpan] = {}

    def message(
        self, kind: int, position: int, end: int, depth: int
    ) -> list[bytes | memoryview] | None:
        """The pieces that replace ``data[position:end]``; None if it stays unchanged."""
        data = self._data
        children = _CHILDREN[kind]
        pieces: list[bytes | memoryview] = []
        kept = position
        fields = small = 0
        packed, of_data = _PACKED.get(kind, {}), _DATA.get(kind, {})
        taken = ""
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
            tag, value, position = read_field(data, start, end)
            if position > end:
                raise _malformed(start)
            if tag & 7 != LENGTH_DELIMITED:
                continue
            number, length = tag >> 3, position - value
            child = children.get(number)
            if child is None:
                size = length
                if number in packed:
                    size = packed[number] * count_varints(self._view[value:position])
                field = of_data.get(number)
                if field is not None and length >= INLINE_BYTES:
                    if taken and (taken, field) != ("raw_data", "raw_data"):
                        raise _scattered()
                    taken = field
                    token = secrets.token_bytes(_TOKEN_BYTES)
                    self.ranges[token] = TensorSpan(value, length, field)
                    pieces += (self._view[kept:start], header(_RAW_DATA, _TOKEN_BYTES), token)
                    kept = position
                    if number in packed:  # decoded later
                        small += size
                else:
                    self._check_value(size)
                    small += size
            elif child == _TYPES:
                fields += length // 2
                small += length
            else:
                replaced = self.message(child, value, position, depth + 1)
                if replaced:
                    size = sum(map(len, replaced))
                    pieces += (self._view[kept:start], header(number, size), *replaced)
                    kept = position
        self._spend(fields, small)
        if pieces:
            pieces.append(self._view[kept:end])
        return pieces or None

    def _check_value(self, size: int) -> None:
        """Refuses a text or a list of numbers that protobuf would parse in one long call."""
        if size > self._limits.value_bytes:
            raise InvalidModel(
                f"a text or a list of numbers in the model takes {size} bytes; at most "
                f"{self._limits.value_bytes} are allowed outside of tensors",
                field="model",
            )

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


def _malformed(position: int) -> InvalidModel:
    return InvalidModel(
        f"not a serialised ONNX model, or cut short: the bytes are not valid near byte "
        f"{position}; send the whole .onnx file as it is",
        field="model",
    )


def _scattered() -> InvalidModel:
    return InvalidModel(
        "a tensor has its data in more than one field; store it as raw data", field="model"
    )
