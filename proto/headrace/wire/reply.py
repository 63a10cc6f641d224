"""Encodes small replies, and the tensors of small requests, without building a message.

All fields of a tensor except its data are the same in every message of a network. They are kept as
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.protobuf.fields import varint
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import ATTACHMENT_BYTES, Value
from headrace.wire.dtypes import STRING, number_of

MAX_NAME_LENGTH: Final = 256
"""The longest name of an output that is kept, so that its bytes take little memory."""

Place: TypeAlias = tuple[str, int]
"""A region and an offset in it."""

_OUTPUTS: Final = 2  # of InferReply
_TIMINGS = struct.Struct("<3sdsdsd")  # field 3 of 27 bytes; in it the doubles 1, 2 and 3


def encode_small_reply(
    identifier: str,
    names: Sequence[str],
    outputs: Mapping[str, Value],
    timings: tuple[float, float, float],
    generation: int,
    version: str,
    in_flight: int = 0,
    places: Mapping[str, Place] | None = None,
) -> bytes | None:
    """An InferReply of numeric tensors; None if an output is anything else, has a long name, or is
    large and has no place.

    Args:
        names: the names in `outputs` that the reply has, in order.
        timings: queue, execution and inference, in seconds.
        generation, version: those of the network that answered.
        in_flight: how many other requests the device had in flight then.
        places: where the bytes of outputs in shared memory lie, which the reply does not have.
    """
    name = identifier.encode()
    parts = [b"\x0a", varint(len(name)), name]
    for key in names:
        value = outputs[key]
        if places and key in places:
            if type(value) is not np.ndarray or len(key) > MAX_NAME_LENGTH:
                return None
            placed = _placed(key, value.dtype, value.shape, places[key])
            if placed is None:
                return None
            parts.append(placed)
            continue
        if (
            type(value) is not np.ndarray
            or value.nbytes > ATTACHMENT_BYTES
            or len(key) > MAX_NAME_LENGTH
        ):
            return None
        head = _head(key, value.dtype, value.shape)
        if head is None:
            return None
        parts += (head, value.tobytes())
    parts += (
        _TIMINGS.pack(b"\x1a\x1b\x09", timings[0], b"\x11", timings[1], b"\x19", timings[2]),
        b"\x28",
        varint(generation),
        _version(version),
    )
    if in_flight:
        parts += (b"\x38", varint(in_flight))
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _version(version: str) -> bytes:
    """Field 6."""
    text = version.encode()
    return b"".join((b"\x32", varint(len(text)), text)) if text else b""


def _number(dtype: np.dtype[Any]) -> int | None:
    """The number of a dtype whose arrays have the bytes that the protocol has; else None."""
    try:
        number = number_of(dtype)
    except ValueError:
        return None
    return number if number != STRING and dtype.isnative else None


@lru_cache(maxsize=1024)
def _head(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes | None:
    return tensor_head(_OUTPUTS, name, dtype, shape)


def tensor_head(
    field: int, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> bytes | None:
    """The bytes of an element of `inputs` or `outputs` up to its data, which `tobytes` gives. None
    for a dtype without this form.

    The element is a Value with a name and a Tensor. The Tensor has a type, a shape and data.

    Args:
        field: the number of `inputs` or `outputs`.
    """
    number = _number(dtype)
    if number is None:
        return None
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    text, sizes = name.encode(), b"".join(map(varint, shape))
    tensor = b"".join(
        (b"\x08", varint(number), b"\x12", varint(len(sizes)), sizes, b"\x1a", varint(size))
    )
    value = b"".join((b"\x0a", varint(len(text)), text, b"\x12", varint(len(tensor) + size)))
    tag = bytes((field << 3 | 2,))
    return b"".join((tag, varint(len(value) + len(tensor) + size), value, tensor))


@lru_cache(maxsize=1024)
def _placed(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], place: Place) -> bytes | None:
    """An element of `outputs` whose bytes lie in shared memory; None for a dtype without this
    form."""
    number = _number(dtype)
    if number is None:
        return None
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    reply = pb.InferReply()
    tensor = reply.outputs.add(name=name).tensor
    tensor.dtype = number  # type: ignore[assignment]  # the stubs expect the enum's own class
    tensor.shape.extend(shape)
    tensor.shared_memory.CopyFrom(pb.SharedMemory(region=place[0], offset=place[1], bytes=size))
    return reply.SerializeToString()
