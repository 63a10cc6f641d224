"""Parses JSON from untrusted clients within bounds.

A parser holds the interpreter from start to end. In measurements this took 3 to 8 ms for each MiB
of numbers, and 0.1 ms for each thousand lists. So bytes and lists are bounded before it starts.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException

from headrace.wire.codec import CodecError

MAX_JSON_BYTES: Final = 4 << 20
"""The limit for an inference request's JSON, about 30 ms. Binary data behind it does not count."""

MAX_CONTAINERS: Final = 1 << 17
"""The most lists and objects in one document."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def parse_object(text: bytes, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in a body. An empty body gives an empty object.

    Args:
        limit: the most bytes.

    Raises:
        HTTPException: 413 if the document is too large.
        CodecError: the body is not JSON, is not an object, or has a name twice in an object.
    """
    if len(text) > limit:
        raise HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the JSON takes {len(text)} bytes; at most {limit} are read. Send tensors as binary "
            "data: binary_data_size in the input's parameters, the bytes behind the JSON, and the "
            "JSON's length in the header Inference-Header-Content-Length",
        )
    if text.count(b"[") + text.count(b"{") > MAX_CONTAINERS:
        raise HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the JSON has more than {MAX_CONTAINERS} lists; send flat data, or binary data",
        )
    if not text:
        return {}
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CodecError("", f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise CodecError("", "the body is not a JSON object")
    _check_names(text, document)
    return document


def leave_out_null(members: dict[str, Any]) -> None:
    """Removes the members that are null. Clients write them for what they leave out."""
    for key in [key for key, value in members.items() if value is None]:
        del members[key]


def _check_names(text: bytes, document: dict[str, Any]) -> None:
    """Raises CodecError if an object has a name twice.

    The parser keeps only the last of two members with the same name. So this compares the number of
    colons with the number of members. It counts in the whole text first, and then in the text
    without strings, because strings may contain colons.
    """
    members = _members(document)
    if text.count(b":") == members or _STRING.sub(b"", text).count(b":") == members:
        return
    raise CodecError(
        "", "the body has a key twice in one object, or an object where none is allowed"
    )


def _members(value: Any) -> int:
    if type(value) is dict:
        return len(value) + sum(map(_members, value.values()))
    if type(value) is list and value and type(value[0]) is dict:
        return sum(map(_members, value))
    return 0
