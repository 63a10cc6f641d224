"""Renders messages of the protocol as JSON, with the names of the .proto.

All numbers stay numbers. protobuf's own JSON writes 64-bit numbers as text, which clients of this
protocol cannot read.
"""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from headrace.oip import open_inference_pb2 as oip


def rendered(message: Any) -> dict[str, Any]:
    """The message's fields by name. Optional fields that are not set are left out."""
    shown: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            if is_parameter(inner):
                if value:
                    shown[field.name] = {key: _given(value[key]) for key in sorted(value)}
                continue
            shown[field.name] = {str(key): _value(inner, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            shown[field.name] = [_value(field, item) for item in value]
        else:
            shown[field.name] = _value(field, value)
    return shown


def is_parameter(field: Any) -> bool:
    """Whether the field's values are parameters, which are plain values in JSON. A message without
    any has no such field."""
    kind = field.message_type
    return kind is not None and kind.full_name == oip.InferParameter.DESCRIPTOR.full_name


def _given(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return rendered(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value).decode()
    return value
