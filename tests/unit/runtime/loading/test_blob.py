from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.loading import blob as blobs
from headrace.runtime.loading.blob import Blob, read, write

KEY = b"k" * 32
PREFIX_BYTES = 37
BLOB = Blob(
    device="CPU",
    architecture="x86_64 avx2",
    backend_version="1.24.0",
    network=(b"network bytes",),
    native=b"native bytes",
    config={"NUM_STREAMS": "2"},
    inputs=(("x", "FLOAT"), ("words", "STRING")),
    outputs=(("y", "BFLOAT16"),),
    meta={"preprocessing": "{}"},
)


def packed(blob: Blob = BLOB, key: bytes = KEY) -> bytes:
    return b"".join(write(blob, key))


def with_header(change: dict[str, Any] | bytes) -> bytes:
    """A blob whose header a client changed, lengths and SHA-256 put right."""
    data = packed()
    size = int.from_bytes(data[17:21], "big")
    header = data[PREFIX_BYTES : PREFIX_BYTES + size]
    rest = data[PREFIX_BYTES + size + 32 :]
    header = (
        change
        if isinstance(change, bytes)
        else json.dumps({**json.loads(header), **change}).encode()
    )
    prefix = data[:17] + len(header).to_bytes(4, "big") + data[21:PREFIX_BYTES]
    digest = hashlib.sha256(prefix + header + BLOB.network[0]).digest()
    return prefix + header + digest + rest


def test_what_was_written_reads_back() -> None:
    blob = read(packed(), KEY)
    assert blob == BLOB
    assert blob.native is not None


def test_a_network_without_native_bytes_reads_back() -> None:
    assert read(packed(replace(BLOB, native=b"")), KEY).native == b""


def test_a_large_blob_is_written_in_pieces_that_fit_a_message() -> None:
    large = replace(BLOB, network=(bytes(5 * 2**19),))
    pieces = list(write(large, KEY))
    assert max(map(len, pieces)) == 2**18
    assert read(b"".join(pieces), KEY) == large


def test_native_bytes_under_another_key_are_not_given_out() -> None:
    blob = read(packed(key=b"another key of thirty-two bytes.."), KEY)
    assert blob.native is None
    assert blob == replace(BLOB, native=None)


def test_native_bytes_moved_to_another_network_are_not_given_out() -> None:
    donor = packed()
    other = packed(replace(BLOB, network=(b"another bytes",)), key=b"x" * 32)
    tail = len(b"native bytes") + 32
    assert read(other[:-tail] + donor[-tail:], KEY).native is None


def test_native_bytes_with_a_changed_header_are_not_given_out() -> None:
    blob = read(with_header({"backend_version": "9"}), KEY)
    assert blob.backend_version == "9"
    assert blob.native is None


def test_no_byte_can_be_flipped_unnoticed() -> None:
    data = packed()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        try:
            blob = read(bytes(damaged), KEY)
        except InvalidArgument as error:
            assert error.field == "blob"  # noqa: PT017 - either outcome is right
            continue
        assert blob == replace(BLOB, native=None), at


@given(st.integers(0, len(packed()) - 1))
def test_a_truncated_blob_is_refused(size: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read(packed()[:size], KEY)
    assert caught.value.field == "blob"


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_refused(data: bytes, start_right: bool) -> None:
    with pytest.raises(InvalidArgument):
        read(packed()[:17] + data if start_right else data, KEY)


@given(
    st.binary(max_size=100),
    st.binary(max_size=100),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text("aä\0\n")),
)
def test_any_content_reads_back(network: bytes, native: bytes, meta: dict[str, str]) -> None:
    blob = replace(BLOB, network=(network,), native=native, meta=meta)
    assert read(packed(blob), KEY) == blob


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not start"),
        (b"ONNX", "does not start"),
        (packed()[:20], "truncated: 20 bytes"),
        (packed()[:-1], "truncated"),
        (packed() + b"x", "too long"),
        (packed()[:13] + b"\0\0\0\2" + packed()[17:], "version 2, this server reads version 1"),
        (packed()[:21] + b"\xff" * 8 + packed()[29:], "at most"),
        (packed()[:21] + b"\0\0\0\0\x10\0\0\0" + packed()[29:], "truncated"),
    ],
)
def test_the_error_says_what_differs(data: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        read(data, KEY)
    assert caught.value.field == "blob"


@pytest.mark.parametrize("part", ["_MAX_HEADER_BYTES", "_MAX_NATIVE_BYTES"])
def test_each_part_is_bounded(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(blobs, part, 9)
    with pytest.raises(InvalidArgument, match="at most"):
        read(packed(), KEY)


def test_the_network_is_bounded() -> None:
    with pytest.raises(InvalidArgument, match="max_model_bytes"):
        read(packed(), KEY, 10)


@pytest.mark.parametrize(
    "change",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b"1" * 5000,
        b"{}",
        {"device": 1},
        {"device": "\ud800"},
        {"config": []},
        {"config": {"NUM_STREAMS": 2}},
        {"inputs": {}},
        {"inputs": ["x"]},
        {"inputs": [{"name": None, "dtype": "FLOAT"}]},
        {"inputs": [{"name": "x"}]},
    ],
)
def test_a_header_that_a_client_made_up_is_checked(change: dict[str, Any] | bytes) -> None:
    with pytest.raises(InvalidArgument, match="header") as caught:
        read(with_header(change), KEY)
    assert caught.value.field == "blob"


def test_another_device_is_refused_saying_all_that_differs() -> None:
    BLOB.check_device("CPU", "x86_64 avx2", "1.24.0")
    with pytest.raises(InvalidArgument) as caught:
        BLOB.check_device("CPU", "aarch64", "1.25.0")
    assert "architecture 'x86_64 avx2', here 'aarch64'" in caught.value.message
    assert "backend version '1.24.0', here '1.25.0'" in caught.value.message
    assert "device 'CPU'" not in caught.value.message
