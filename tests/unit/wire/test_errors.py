"""Errors as google.rpc.Status and trailing metadata."""

from __future__ import annotations

import base64
from unittest.mock import Mock
from urllib.parse import quote

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire import errors
from headrace.wire.errors import (
    MAX_TEXT_BYTES,
    ErrorDetails,
    bounded,
    from_status,
    shorten,
    to_status,
    to_trailing_metadata,
)

codes = st.sampled_from([code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
details = st.builds(
    ErrorDetails,
    code=codes,
    message=st.text(max_size=20),
    reason=st.text("ABC_", min_size=1, max_size=9),
    field=st.none() | st.text(min_size=1, max_size=9),
    metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    retry_delay_seconds=st.none() | st.integers(0, 10_000).map(lambda ms: ms / 1000),
    request_id=st.text(max_size=9),
)


@given(details)
def test_every_detail_arrives(error: ErrorDetails) -> None:
    assert errors.from_status(errors.to_status(error)) == error
    metadata = errors.to_trailing_metadata(error)
    assert errors.from_trailing_metadata(error.code, error.message, metadata) == error


def test_a_code_may_be_given_by_name() -> None:
    assert ErrorDetails("NOT_FOUND", "m").code is grpc.StatusCode.NOT_FOUND
    with pytest.raises(KeyError):
        ErrorDetails("NOT_THERE", "m")


def test_the_reason_is_the_status_where_nothing_finer_is_known() -> None:
    status = errors.to_status(ErrorDetails(grpc.StatusCode.INTERNAL, "m"))
    assert errors.from_status(status).reason == "INTERNAL"


def test_grpc_reads_the_trailing_metadata_as_rich_status() -> None:
    error = ErrorDetails(grpc.StatusCode.NOT_FOUND, "no", field="name")
    ((key, value),) = errors.to_trailing_metadata(error)
    assert key == "grpc-status-details-bin"
    assert status_pb2.Status.FromString(value).message == "no"


def test_without_details_the_code_and_message_stand() -> None:
    plain = ErrorDetails(grpc.StatusCode.UNAVAILABLE, "gone")
    assert errors.from_trailing_metadata(plain.code, "gone", None) == plain
    assert errors.from_trailing_metadata(plain.code, "gone", [("a", "b")]) == plain


@pytest.mark.parametrize("value", [b"\xff", status_pb2.Status(code=3).SerializeToString()])
def test_details_that_do_not_parse_or_do_not_belong_are_passed_over(value: bytes) -> None:
    found = errors.from_trailing_metadata(
        grpc.StatusCode.UNAVAILABLE, "gone", [("grpc-status-details-bin", value)]
    )
    assert found == ErrorDetails(grpc.StatusCode.UNAVAILABLE, "gone")


def test_a_broken_detail_leaves_the_others() -> None:
    status = errors.to_status(ErrorDetails(grpc.StatusCode.NOT_FOUND, "m", field="f"))
    url = f"type.googleapis.com/{error_details_pb2.RetryInfo.DESCRIPTOR.full_name}"
    status.details.append(any_pb2.Any(type_url=url, value=b"\xff"))
    found = errors.from_status(status)
    assert found.field == "f"
    assert found.retry_delay_seconds is None


def test_anothers_reason_is_not_ours() -> None:
    status = status_pb2.Status(code=5, message="m")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="R", domain="else.where"))
    assert errors.from_status(status).reason == ""


UNQUOTED = "".join(map(chr, {*range(0x20, 0x7F)} - {ord("%")}))
texts = st.one_of(
    st.text(max_size=30),
    st.builds(
        lambda text, times: text * times, st.text(min_size=1, max_size=9), st.integers(0, 9999)
    ),
)


@given(texts, texts, st.dictionaries(texts, texts, max_size=9), texts)
def test_an_error_of_any_length_fits_the_metadata_that_clients_take(
    message: str, field: str, metadata: dict[str, str], request_id: str
) -> None:
    error = bounded(
        ErrorDetails(
            grpc.StatusCode.FAILED_PRECONDITION,
            message,
            reason="UNSUPPORTED_LAYERS",
            field=field or None,
            metadata=metadata,
            retry_delay_seconds=0.1,
            request_id=request_id,
        )
    )
    ((key, value),) = to_trailing_metadata(error)
    text = quote(error.message, safe=UNQUOTED)
    assert len(text) <= MAX_TEXT_BYTES
    assert len(key) + len(base64.b64encode(value)) + len(text) < 7000
    assert from_status(to_status(error)) == error


def test_a_long_name_is_cut_in_its_middle_and_the_sentence_stays() -> None:
    error = shorten(f"unknown metric '{'M' * 20000}' of CPU; known: {'name ' * 30}and a remedy")
    assert error.startswith("unknown metric 'MMMM")
    assert "M…M" in error
    assert error.endswith("and a remedy")
    assert len(error) < 400


def test_of_a_text_of_megabytes_only_the_ends_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such names take minutes to look through, and all threads wait meanwhile."""
    read: list[str] = []

    def note(_: str, text: str) -> str:
        read.append(text)
        return text

    names = Mock(sub=note)
    monkeypatch.setattr(errors, "_LONG_NAME", names)
    error = shorten(f"unknown input {('x' * 128 + ' ') * 2**15!r} of the network")
    assert error.startswith("unknown input 'xxxx")
    assert error.endswith("' of the network")
    assert len(error) <= MAX_TEXT_BYTES
    assert [len(each) for each in read] == [8 * MAX_TEXT_BYTES + 1]


def test_a_text_that_fits_is_sent_as_it_is() -> None:
    text = "x" * 1000 + " ä" * 100
    assert shorten(text) == text


def test_half_a_surrogate_pair_becomes_a_character_that_can_be_sent() -> None:
    assert shorten("a\ud800b") == "a?b"
