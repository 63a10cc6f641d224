"""JSON of strangers: what is refused before it is parsed, and what parsers read in two ways."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from headrace.server.http.rest.documents import MAX_CONTAINERS, parse_object
from headrace.wire.codec import CodecError

TEXTS = st.lists(st.text())


@given(st.dictionaries(st.text(), st.integers(-(2**63), 2**64 - 1) | st.text() | TEXTS))
def test_an_object_is_read_as_it_was_written(document: dict[str, object]) -> None:
    assert parse_object(json.dumps(document).encode()) == document


def test_an_empty_body_is_an_empty_object() -> None:
    assert parse_object(b"") == {}


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"nothing",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 01}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xff"}',
        b'{"a": "\n"}',
        b'{"a": 1,}',
        b"\xef\xbb\xbf{}",
        b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"a": 1}{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError, match="is not JSON"):
        parse_object(text)


@pytest.mark.parametrize("text", [b"[]", b"1", b"null", b'"a"', b"true"])
def test_what_is_not_an_object_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError, match="not a JSON object"):
        parse_object(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"a": [{"b": 1}, {"b": 1, "c": 2, "b": 3}]}',
        b'{"a": ":", "a": 2}',
        b'{"a": "\\":", "a": 2}',
        b'{"\\u0061": 1, "a": 2}',
    ],
)
def test_a_name_that_stands_twice_in_an_object_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError, match="a key twice"):
        parse_object(text)


@pytest.mark.parametrize(
    "document",
    [
        {"a:b": 1, "c": "http://d:80/"},
        {"a": '":"', "b": "\\", "c": '\\":'},
        {"inputs": [{"data": ["a:b", "c"], "name": "x"}, {"name": ":"}]},
    ],
)
def test_colons_in_text_are_no_names(document: dict[str, object]) -> None:
    assert parse_object(json.dumps(document).encode()) == document


def test_a_document_with_very_many_lists_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(HTTPException, match="lists") as caught:
        parse_object(b'{"a": [' + b"[]," * MAX_CONTAINERS)
    assert caught.value.status_code == 413


def test_a_large_document_is_refused_and_told_of_binary_data() -> None:
    with pytest.raises(HTTPException, match="binary_data_size") as caught:
        parse_object(b" " * 11 + b"{}", limit=12)
    assert caught.value.status_code == 413
    assert parse_object(b" " * 10 + b"{}", limit=12) == {}
