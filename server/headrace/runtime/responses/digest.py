"""What makes two requests the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Final

import numpy as np

from headrace.runtime.network.values import Array, Value
from headrace.runtime.system.buffers import Buffer

_TEXT_BYTES: Final = 64
"""What a text costs besides its own bytes, counted in bytes of a number."""
_MANY_TEXTS: Final = 1024


def digest_of(secret: bytes, facts: object, inputs: Mapping[str, Value]) -> bytes:
    """A number that two requests have in common only if all that is given here is the same, to the
    last bit. Nobody can make two requests that have it in common: it is a SHA-256, and begins with
    what only this process knows.

    Args:
        secret: of this process.
        facts: what the reply follows from besides the inputs; its `repr` says all of it.
        inputs: by name. Nobody may write to them meanwhile.
    """
    data: list[Buffer] = []
    described = [(name, _described(inputs[name], data)) for name in sorted(inputs)]
    head = repr((facts, described)).encode("utf-8", "surrogatepass")
    state = sha256(secret)
    # The head has the length of all that follows, so that no byte can belong to two tensors.
    state.update(len(head).to_bytes(8, "little"))
    state.update(head)
    for each in data:
        state.update(each)
    return state.digest()


def work_of(inputs: Mapping[str, Value]) -> int:
    """About how many bytes `digest_of` reads."""
    return sum(map(_work, inputs.values()))


def _described(value: Value, data: list[Buffer]) -> object:
    if value is None:
        return None
    if isinstance(value, list):
        return [_described(element, data) for element in value]
    if value.dtype == object:
        return ("texts", value.shape, _texts(value, data))
    data.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return (value.dtype.name, value.dtype.str, value.shape)


def _texts(value: Array, data: list[Buffer]) -> int:
    """Adds texts and the length of each; returns the length of all together."""
    encoded = list(_encoded(value))
    # The lengths of bytes are negative, so that they are not taken for a text.
    data.append(np.array([size for size, _ in encoded], np.int64).view(np.uint8).data)
    joined = b"".join(each for _, each in encoded)
    data.append(joined)
    return len(joined)


def _encoded(value: Array) -> Iterator[tuple[int, bytes]]:
    for each in value.reshape(-1):
        if isinstance(each, str):
            text = each.encode("utf-8", "surrogatepass")
            yield len(text), text
        else:
            yield -1 - len(each), bytes(each)


def _work(value: Value) -> int:
    if value is None:
        return 0
    if isinstance(value, list):
        return sum(map(_work, value))
    if value.dtype != object:
        return int(value.nbytes)
    texts = _TEXT_BYTES * value.size
    if value.size > _MANY_TEXTS:
        return texts
    return texts + sum(map(len, value.reshape(-1)))
