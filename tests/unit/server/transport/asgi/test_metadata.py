"""gRPC's metadata, timeouts and texts in HTTP headers."""

from __future__ import annotations

import base64
from urllib.parse import quote, unquote

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.server.transport.asgi.metadata import (
    Metadata,
    certificate_of,
    encoded,
    escaped,
    seconds_of,
)


def test_a_call_has_the_metadata_that_its_caller_sent_and_no_others() -> None:
    headers = [
        *((b"host", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc")),
        *((b"grpc-timeout", b"1S"), (b"x-forwarded-client-cert", b"Cert=x")),
        *((b"user-agent", b"grpc"), (b"authorization", b"Bearer a"), (b"key", b"one")),
        (b"key", b"two"),
    ]
    assert list(Metadata(headers)) == [
        *(("user-agent", "grpc"), ("authorization", "Bearer a"), ("key", "one"), ("key", "two"))
    ]


def test_binary_values_are_bytes() -> None:
    values = [b"", b"\0", b"\xff\xfe", b"abc"]
    joined = b",".join(base64.b64encode(each).rstrip(b"=") for each in values[1:])
    assert list(Metadata([(b"a-bin", joined)])) == [("a-bin", each) for each in values[1:]]
    padded = base64.b64encode(b"\0")
    assert list(Metadata([(b"a-bin", padded)])) == [("a-bin", b"\0")]


def test_a_binary_value_that_is_not_base64_is_dropped() -> None:
    assert list(Metadata([(b"a-bin", b"!"), (b"b-bin", b"YQ")])) == [("b-bin", b"a")]


def test_metadata_of_a_reply_are_headers_that_grpc_reads_again() -> None:
    sent: list[tuple[str, str | bytes]] = [("x-request-id", "r1"), ("details-bin", b"\0\xff")]
    assert list(Metadata(encoded(sent))) == sent


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(b"1S", 1.0), (b"250m", 0.25), (b"2H", 7200.0), (b"3M", 180.0), (b"5u", 5e-6), (b"0n", 0.0)],
)
def test_a_timeout_has_digits_and_a_unit(header: bytes, seconds: float) -> None:
    assert seconds_of(header) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "header", [b"", b"S", b"1", b"-1S", b"1.5S", b"123456789S", b"1s", b"1\xb2"]
)
def test_any_other_timeout_is_refused(header: bytes) -> None:
    with pytest.raises(InvalidArgument) as refused:
        seconds_of(header)
    assert refused.value.field == "grpc-timeout"


@pytest.mark.parametrize("message", ["", "plain: 'x' (1)", "100 %", "zwölf\nlines\r", "\x7f\0"])
def test_a_status_message_travels_as_printable_ascii(message: str) -> None:
    header = escaped(message).decode("ascii")
    assert header.isprintable()
    assert unquote(header) == message


def test_the_certificate_is_found_in_what_the_server_in_front_says() -> None:
    pem = '-----BEGIN CERTIFICATE-----\na+b=;,"\n-----END CERTIFICATE-----\n'
    header = f'Hash=0a;Cert="{quote(pem, safe="")}";Subject="CN=x"'.encode()
    assert certificate_of(header) == pem.encode()
    assert certificate_of(b"Hash=0a") is None
