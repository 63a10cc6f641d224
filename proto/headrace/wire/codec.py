"""Values: the protocol's `Value` ↔ ndarray, list of values, or None for an absent optional.

Decoding copies nothing: an array is a read-only view of the message's bytes. The one exception is
an attachment that does not lie at a multiple of its element's size. It is copied, because
backends need aligned arrays. `headrace.wire.message` aligns what it writes, to avoid this copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.dtypes import BOOL, NUMPY_TYPES, STRING, number_of

Array: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = "Array | list[Value] | None"
Buffer: TypeAlias = "bytes | memoryview"

ATTACHMENT_BYTES: Final = 16 * 1024
"""Arrays larger than this travel as attachments."""
PLAIN: Final = {
    number: dtype for number, dtype in NUMPY_TYPES.items() if number not in (BOOL, STRING)
}
"""The types of which any bytes are values, by their numbers."""
MAX_NESTING: Final = 8
MAX_SEQUENCE_ELEMENTS: Final = 65_536
MAX_NAME_LENGTH: Final = 4096  # as in a model
MAX_RANK: Final = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32  # NumPy's own


class CodecError(ValueError):
    """A message or value that breaks the protocol.

    `field` is the path of the part at fault, as ``inputs['x'].shape``; `message` says what is
    wrong with it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message

    def under(self, parent: str) -> CodecError:
        """The same error, with the path of its field as seen from an enclosing message."""
        return CodecError(parent + self.field, self.message)


# ---- decoding ----


def decode_values(
    values: Iterable[pb.Value],
    attachments: Sequence[Buffer] = (),
    root: str = "inputs",
    in_region: Callable[[pb.Value], Any] | None = None,
) -> dict[str, Any]:
    """Name → value of a request's inputs or a reply's outputs.

    Arrays are read-only; they keep the message's bytes alive.

    Args:
        values: a list is read in a fraction of the time that a message's own field takes.
        attachments: those of the enclosing message; each may be used once.
        root: the name of the repeated field in the paths of errors.
        in_region: stands in for a tensor in shared memory. Without it, such tensors are refused.

    Raises:
        CodecError: a name appears twice, or a value breaks the protocol.
    """
    pool: list[Buffer | None] = list(attachments) if attachments else []
    decoded: dict[str, Any] = {}
    for value in values:
        name, tensor = value.name, value.tensor
        if len(name) > MAX_NAME_LENGTH:
            raise CodecError(
                f"{root}[{len(decoded)}].name",
                f"has {len(name)} characters; at most {MAX_NAME_LENGTH} are possible",
            )
        dtype, data = PLAIN.get(tensor.dtype), tensor.data
        # Most values are such tensors, and need no calls.
        if (
            data
            and dtype is not None
            and name not in decoded
            and not tensor.attachment
            and not tensor.strings
            and not tensor.HasField("shared_memory")
        ):
            shape = tensor.shape[:]
            if len(shape) <= MAX_RANK and len(data) == dtype.itemsize * math.prod(shape):
                try:
                    decoded[name] = np.ndarray(shape, dtype, data)
                    continue
                except ValueError:  # two negative sizes
                    pass
        try:
            if name in decoded:
                raise CodecError("", "is given twice")
            if in_region is not None and tensor.HasField("shared_memory"):
                decoded[name] = in_region(value)
            elif value.HasField("tensor"):
                decoded[name] = _decode_tensor(tensor, pool)
            else:
                decoded[name] = _decode_other(value, pool, [MAX_SEQUENCE_ELEMENTS], 0)
        except CodecError as error:
            raise error.under(f"{root}[{name!r}]") from None
    return decoded


def _decode_other(
    value: pb.Value, pool: list[Buffer | None], budget: list[int], depth: int
) -> Value:
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        return _decode_tensor(value.tensor, pool)
    if kind == "absent":
        return None
    if kind != "sequence":
        raise CodecError("", "holds neither a tensor nor a sequence nor an absent optional")
    if depth >= MAX_NESTING:
        raise CodecError("", f"sequences nest deeper than {MAX_NESTING}")
    elements = value.sequence.elements
    budget[0] -= len(elements)
    if budget[0] < 0:
        raise CodecError("", f"sequences hold more than {MAX_SEQUENCE_ELEMENTS} elements")
    decoded: list[Value] = []
    for index, element in enumerate(elements):
        try:
            decoded.append(_decode_other(element, pool, budget, depth + 1))
        except CodecError as error:
            raise error.under(f"[{index}]") from None
    return decoded


def _decode_tensor(tensor: pb.Tensor, pool: list[Buffer | None]) -> Array:
    number = tensor.dtype
    dtype = NUMPY_TYPES.get(number)
    if dtype is None:
        raise CodecError(".dtype", f"{number} is not a data type")
    if number == STRING:
        return _decode_strings(tensor)
    data = _take(tensor, pool) if tensor.attachment else tensor.data
    shape = tensor.shape[:]  # a list, several times faster to read than the message's own
    if len(shape) > MAX_RANK:  # before the product, which grows with every dimension
        check_shape(shape)
    if len(data) != dtype.itemsize * math.prod(shape):
        check_shape(shape)
        if tensor.HasField("shared_memory"):
            raise CodecError(".shared_memory", "is for a tensor that is an input by itself")
        raise CodecError(
            ".data",
            f"has {len(data)} bytes, but shape {list(shape)} of {dtype} takes "
            f"{dtype.itemsize * math.prod(shape)}",
        )
    try:
        array: Array = np.ndarray(shape, dtype, data)
    except ValueError as error:  # two negative sizes, or sizes beyond the address space and a zero
        check_shape(shape)
        raise CodecError(".shape", f"{list(shape)}: {error}") from None
    if tensor.strings:
        raise CodecError(".strings", f"must be empty in a tensor of {dtype}")
    if tensor.attachment and not array.flags.aligned:
        array = array.copy()
        array.flags.writeable = False
    if number == BOOL and array.view(np.uint8).max(initial=0) > 1:
        raise CodecError(".data", "a bool's byte must be 0 or 1")
    return array


def _take(tensor: pb.Tensor, pool: list[Buffer | None]) -> Buffer:
    index = tensor.attachment
    if index > len(pool):
        raise CodecError(
            ".attachment", f"is {index}, but the message has {len(pool)} attachment(s)"
        )
    data = pool[index - 1]
    if data is None:
        raise CodecError(".attachment", f"attachment {index} is used twice")
    if tensor.data:
        raise CodecError(".data", "must be empty where attachment is set")
    pool[index - 1] = None
    return data


def check_shape(shape: Sequence[int]) -> None:
    """Says what is wrong with a shape; returns if nothing is."""
    if len(shape) > MAX_RANK:
        raise CodecError(".shape", f"has {len(shape)} dimensions; at most {MAX_RANK} are possible")
    if shape and min(shape) < 0:
        raise CodecError(".shape", f"{list(shape)} has a negative size; send the actual sizes")
    count = math.prod(shape) or math.prod(size for size in shape if size)
    if count >= 2**59:  # 16-byte elements fill the address space
        raise CodecError(".shape", f"{list(shape)} overflows the address space")


def _decode_strings(tensor: pb.Tensor) -> Array:
    shape = tensor.shape
    check_shape(shape)
    strings = tensor.strings
    if tensor.data or tensor.attachment:
        raise CodecError(".data", "must be empty in a tensor of strings; fill strings")
    if len(strings) != math.prod(shape):
        raise CodecError(
            ".strings",
            f"has {len(strings)} elements, but shape {list(shape)} takes {math.prod(shape)}",
        )
    array: Array = np.empty(len(strings), dtype=object)
    for index, text in enumerate(strings):
        try:
            array[index] = text.decode("utf-8")
        except UnicodeDecodeError:
            array[index] = text
    array = array.reshape(tuple(shape))
    array.flags.writeable = False
    return array


# ---- encoding ----


def encode_values(
    values: Mapping[str, Value],
    into: Any,
    attachments: list[Buffer],
    root: str = "outputs",
) -> None:
    """Adds values to the repeated field `into` of an InferRequest or InferReply.

    Arrays may be of any memory order and either byte order. Those above ATTACHMENT_BYTES are
    appended to `attachments`. A C-contiguous array is appended as a view of its own memory, so it
    must not change until the message is serialised.

    Raises:
        CodecError: ONNX has no type for a value, or sequences have too many elements or levels.
    """
    for name, value in values.items():
        message = into.add()
        message.name = name
        try:
            if isinstance(value, np.ndarray):
                _encode_tensor(value, message.tensor, attachments)
            else:
                _encode_other(value, message, attachments, [MAX_SEQUENCE_ELEMENTS], 0)
        except CodecError as error:
            raise error.under(f"{root}[{name!r}]") from None


def _encode_other(
    value: Any, message: pb.Value, attachments: list[Buffer], budget: list[int], depth: int
) -> None:
    if value is None:
        message.absent.SetInParent()
    elif isinstance(value, (np.ndarray, np.generic)):
        _encode_tensor(np.asarray(value), message.tensor, attachments)
    elif isinstance(value, (list, tuple)):
        if depth >= MAX_NESTING:
            raise CodecError("", f"sequences nest deeper than {MAX_NESTING}")
        budget[0] -= len(value)
        if budget[0] < 0:
            raise CodecError("", f"sequences hold more than {MAX_SEQUENCE_ELEMENTS} elements")
        message.sequence.SetInParent()
        elements = message.sequence.elements
        for index, element in enumerate(value):
            try:
                _encode_other(element, elements.add(), attachments, budget, depth + 1)
            except CodecError as error:
                raise error.under(f"[{index}]") from None
    else:
        raise CodecError("", f"a {type(value).__name__} is neither an array, a list nor None")


def _encode_tensor(array: Array, tensor: pb.Tensor, attachments: list[Buffer]) -> None:
    try:
        number = number_of(array.dtype)
    except ValueError as error:
        raise CodecError(".dtype", str(error)) from None
    tensor.dtype = number  # type: ignore[assignment]  # the stubs expect the enum's own class
    tensor.shape.extend(array.shape)
    if number == STRING:
        tensor.strings.extend(_encode_strings(array))
        return
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.nbytes <= ATTACHMENT_BYTES:
        tensor.data = array.tobytes()
        return
    # ml_dtypes arrays do not support the buffer protocol; a view of their bytes does.
    attachments.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    tensor.attachment = len(attachments)


def _encode_strings(array: Array) -> list[bytes]:
    encoded = []
    for text in array.reshape(-1).tolist():
        if isinstance(text, str):
            try:
                encoded.append(text.encode("utf-8"))
            except UnicodeEncodeError as error:
                raise CodecError(
                    ".strings", f"{text!r} is not Unicode text: {error.reason}"
                ) from None
        elif isinstance(text, bytes):
            encoded.append(text)
        else:
            kind = type(text).__name__
            raise CodecError(".strings", f"holds a {kind}; elements must be str or bytes")
    return encoded
