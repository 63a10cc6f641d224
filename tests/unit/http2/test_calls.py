"""The header blocks of gRPC's calls."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.http2.calls import (
    RequestHead,
    ResponseHead,
    Trailers,
    code_of_http,
    is_grpc,
    request_block,
    seconds_of,
    timeout_of,
    trailers_block,
)
from headrace.http2.faults import StreamFault
from headrace.http2.limits import ConnectionLimits
from tests.support.http2_ends import CALL

keys = st.from_regex(r"x-[a-z0-9._-]{0,5}", fullmatch=True).filter(lambda key: key[-4:] != "-bin")
texts = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=9)
metadata = st.lists(
    st.tuples(keys, texts) | st.tuples(keys.map("{}-bin".format), st.binary(max_size=9)),
    max_size=5,
)


def fields(block: bytes) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in hpack.Decoder().decode(block, raw=True)]


def call(*more: tuple[bytes, bytes]) -> RequestHead:
    return RequestHead([*CALL, *more])


@given(sent=metadata)
def test_metadata_arrive_as_they_were_sent(sent: list[tuple[str, str | bytes]]) -> None:
    head = RequestHead(fields(request_block("/a.B/C", "localhost", metadata=sent)))
    assert list(head.metadata) == sent
    assert (head.path, head.refused, head.http) == ("/a.B/C", None, None)


@given(
    code=st.integers(0, 16),
    text=st.text(st.characters(blacklist_categories=["Cs"]), max_size=20),
    sent=metadata,
)
def test_a_status_arrives_as_it_was_sent(
    code: int, text: str, sent: list[tuple[str, str | bytes]]
) -> None:
    trailers = Trailers(fields(trailers_block(code, text, sent)))
    assert (trailers.code, trailers.message) == (code, text)
    assert [each for each in trailers.metadata if each[0] != "grpc-accept-encoding"] == sent


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ([("X-Upper", "v")], "not the name"),
        ([("x y", "v")], "not the name"),
        ([(":path", "/")], "not the name"),
        ([("connection", "close")], "no place"),
        ([("x", "two\nlines")], "cannot be sent"),
        ([("x", "\N{SNOWMAN}")], "ascii"),
    ],
)
def test_metadata_that_cannot_be_sent_are_refused(
    metadata: list[tuple[str, str]], why: str
) -> None:
    with pytest.raises((ValueError, StreamFault), match=why):
        request_block("/a.B/C", "localhost", metadata=metadata)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"1H", 3600.0), (b"2M", 120.0), (b"3S", 3.0), (b"40m", 0.04), (b"5u", 5e-6), (b"6n", 6e-9)],
)
def test_a_deadline_is_read(text: bytes, seconds: float) -> None:
    assert call((b"grpc-timeout", text)).timeout == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", [b"", b"S", b"1", b"1s", b"-1S", b"1.5S", b"123456789S", b"\xb2S", b" 1S"]
)
def test_a_deadline_that_is_none_refuses_the_call(text: bytes) -> None:
    assert seconds_of(text) is None
    refused = RequestHead([*CALL, (b"grpc-timeout", text)] if text[:1] != b" " else list(CALL))
    assert text[:1] == b" " or (refused.refused is not None and refused.refused[0] == 13)


@given(seconds=st.floats(1e-9, 1e9))
def test_a_deadline_is_sent_with_three_digits_and_never_longer(seconds: float) -> None:
    text = timeout_of(seconds)
    sent = seconds_of(text)
    assert sent is not None
    assert sent <= seconds * (1 + 1e-9) or text == b"1n"
    assert sent >= seconds * 0.98 or seconds < 1e-7


def test_an_unknown_encoding_refuses_the_call_and_names_those_known() -> None:
    head = call((b"grpc-encoding", b"snappy"))
    assert head.refused is not None
    assert head.refused[0] == 12
    assert "identity, gzip, deflate" in head.refused[1]
    assert b"grpc-accept-encoding" in dict(fields(trailers_block(*head.refused)))


@pytest.mark.parametrize("value", [b"A", b"A===", b"!!!!", b"AA==A"])
def test_binary_metadata_that_is_not_base64_refuses_the_call(value: bytes) -> None:
    head = call((b"x-bin", value))
    assert head.refused is not None
    assert head.refused[0] == 13


def test_binary_metadata_may_be_padded_and_several() -> None:
    head = call((b"x-bin", b"YQ==, Yg,YWJj"))
    assert head.metadata == (("x-bin", b"a"), ("x-bin", b"b"), ("x-bin", b"abc"))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc;charset=utf-8", True),
        (b"application/grpc-web", False),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_a_call_is_told_by_its_content_type(kind: bytes, expected: bool) -> None:
    assert is_grpc(kind) is expected
    head = RequestHead([*CALL[:-1], (b"content-type", kind)])
    assert (head.http is None) is expected


def test_a_call_that_is_not_posted_is_not_one() -> None:
    head = RequestHead([(b":method", b"GET"), *CALL[1:]])
    assert head.http is not None
    assert head.http[0] == 405


def test_trailers_without_a_status_have_none() -> None:
    assert Trailers([(b"x", b"y")]).code is None
    assert Trailers([(b"grpc-status", b"x")]).code is None
    assert Trailers([(b"grpc-status", b"1" * 50)]).code is None


def test_a_status_text_that_is_badly_encoded_is_shown_as_far_as_it_goes() -> None:
    assert (
        Trailers([(b"grpc-message", b"50%% of %zz%ff")]).message
        == "50%% of %zz\N{REPLACEMENT CHARACTER}"
    )


def test_metadata_of_a_response_that_are_broken_are_left_out() -> None:
    head = ResponseHead([(b":status", b"200"), (b"x-bin", b"!"), (b"x", b"y")])
    assert head.metadata == (("x", "y"),)


@pytest.mark.parametrize(
    ("status", "code"), [(400, 13), (401, 16), (403, 7), (404, 12), (429, 14), (503, 14), (418, 2)]
)
def test_a_status_of_http_has_one_of_grpc(status: int, code: int) -> None:
    assert code_of_http(status) == code


@pytest.mark.parametrize("name", ["window_bytes", "connection_bytes", "frame_bytes"])
def test_a_limit_below_what_http2_lets_a_peer_count_on_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 1000"):
        ConnectionLimits(**{name: 1000})
