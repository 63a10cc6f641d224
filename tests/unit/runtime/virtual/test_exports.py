"""Several devices' bytes in one piece: read as they were written, or refused with the reason."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.virtual.exports import ExportFormat

FORMAT = ExportFormat(b"\x89TEST\n", 3, "the devices'")
EXPORTS = (({"device": "CPU"}, b"native bytes"), (["ü", 1, None], b""))


def read(data: bytes) -> tuple[Any, ...]:
    return FORMAT.read(data, lambda facts, native: (facts, native))


def test_what_was_written_is_read() -> None:
    assert read(FORMAT.write(EXPORTS)) == EXPORTS


@given(st.lists(st.tuples(st.lists(st.text()), st.binary()), max_size=4))
def test_whatever_was_written_is_read(exports: list[tuple[list[str], bytes]]) -> None:
    assert read(FORMAT.write(exports)) == tuple(exports)


@pytest.mark.parametrize("at", range(0, len(FORMAT.write(EXPORTS)), 5))
def test_a_changed_byte_is_noticed(at: int) -> None:
    data = bytearray(FORMAT.write(EXPORTS))
    data[at] ^= 1
    with pytest.raises(InvalidArgument) as caught:
        read(bytes(data))
    assert caught.value.field == "blob"


def test_a_piece_is_not_taken_for_the_whole() -> None:
    data = FORMAT.write(EXPORTS)
    for size in (0, 10, 20, len(data) - 1):
        with pytest.raises(InvalidArgument):
            read(data[:size])
    with pytest.raises(InvalidArgument):
        read(data + b"\0")


def test_another_version_is_refused_by_its_number() -> None:
    data = bytearray(FORMAT.write(EXPORTS))
    struct.pack_into(">I", data, len(FORMAT.magic), 2)
    with pytest.raises(InvalidArgument, match=r"the devices' .* version 2, this server reads 3"):
        read(bytes(data))


def test_bytes_of_another_kind_are_refused() -> None:
    other = ExportFormat(b"\x89OTHER\n", 3, "the subgraphs'")
    with pytest.raises(InvalidArgument, match="do not start with the magic bytes"):
        read(other.write(EXPORTS))


@pytest.mark.parametrize("header", [b"{", b"[1]", b'[["a", "x"]]', b'[["a", 5]]'])
def test_a_header_that_says_nothing_is_refused(header: bytes) -> None:
    body = FORMAT.magic + struct.pack(">II", FORMAT.version, len(header)) + header
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read(body + hashlib.sha256(body).digest())


def test_facts_that_make_no_export_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="their header cannot be read"):
        FORMAT.read(FORMAT.write(EXPORTS), lambda facts, _: facts["device"])
