"""Tensors whose bytes lie in a registered region of shared memory. Both sides use this module.

The receiver of a message first fetches the bytes and adds them to the message's attachments. Then
it decodes the message like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import Array, Buffer, CodecError
from headrace.wire.dtypes import STRING, number_of


def in_regions(values: Iterable[pb.Value], root: str) -> Iterator[tuple[str, pb.Tensor]]:
    """Field and tensor of each value that lies in a region.

    Args:
        root: the name of the repeated field in errors.

    Raises:
        CodecError: a tensor also has bytes in the message, or is one of strings.
    """
    for value in values:
        tensor = value.tensor
        if tensor.HasField("shared_memory"):
            field = f"{root}[{value.name!r}]"
            check_in_region(tensor, field)
            yield f"{field}.shared_memory", tensor


def check_in_region(tensor: pb.Tensor, field: str) -> None:
    """
    Raises:
        CodecError: a tensor in a region also has bytes in the message, or is one of strings.
    """
    if tensor.dtype == STRING:
        raise no_strings(field)
    if tensor.data or tensor.attachment:
        raise CodecError(f"{field}.shared_memory", "must not be set where data or attachment is")


def attach(tensor: pb.Tensor, data: Buffer, attachments: list[Buffer]) -> None:
    """Adds the bytes of a tensor in a region to its message as an attachment."""
    attachments.append(data)
    tensor.attachment = len(attachments)
    tensor.ClearField("shared_memory")


def describe(array: Array, place: pb.SharedMemory, tensor: pb.Tensor, field: str) -> None:
    """Fills in a tensor whose bytes are in a region: its type, shape and place.

    Raises:
        CodecError: it is one of strings, or of a type that ONNX does not have.
    """
    try:
        number = number_of(array.dtype)
    except ValueError as error:
        raise CodecError(field, str(error)) from None
    if number == STRING:
        raise no_strings(field)
    kind: Any = number  # the stubs want the enum's own class
    tensor.dtype = kind
    tensor.shape.extend(array.shape)
    tensor.shared_memory.CopyFrom(place)
    tensor.shared_memory.bytes = array.nbytes


def no_strings(field: str) -> CodecError:
    return CodecError(field, "strings do not travel in shared memory; send them in the message")
