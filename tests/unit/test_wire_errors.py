"""Errors as google.rpc.Status and trailing metadata."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire import errors
from headrace.wire.errors import ErrorDetails

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
