"""Serialised models."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def serialize(model: ir.Model) -> Iterator[bytes | memoryview]:
    """The bytes of the ModelProto of `model`, piece by piece."""
    data: bytes = ir.to_proto(model).SerializeToString()
    yield data
