"""The bytes that an exported network keeps of its subgraphs."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.hetero.container import Frame, read, write
from headrace.plugins.hetero.flow import Ends
from headrace.runtime.errors import InvalidArgument

FRAMES = (
    Frame("CPU", ("a", "b"), Ends(("x",), ("t",)), "x86_64", "1.2", b"native bytes"),
    Frame("MULTI:[BATCH:CPU(8)]", ("ü",), Ends(("t",), ("y",)), "TEMPLATE", "", b""),
)
NAMES = st.lists(st.text(), max_size=3).map(tuple)


def test_what_was_written_is_read() -> None:
    assert read(write(FRAMES)) == FRAMES


@given(
    st.lists(
        st.builds(
            Frame,
            st.text(),
            NAMES,
            st.builds(Ends, NAMES, NAMES),
            st.text(),
            st.text(),
            st.binary(),
        ),
        max_size=4,
    )
)
def test_whatever_was_written_is_read(frames: list[Frame]) -> None:
    assert read(write(frames)) == tuple(frames)


@pytest.mark.parametrize("at", range(0, len(write(FRAMES)), 7))
def test_a_changed_byte_is_noticed(at: int) -> None:
    data = bytearray(write(FRAMES))
    data[at] ^= 1
    with pytest.raises(InvalidArgument) as caught:
        read(bytes(data))
    assert caught.value.field == "blob"


def test_a_piece_is_not_taken_for_the_whole() -> None:
    data = write(FRAMES)
    for size in (0, 10, 20, len(data) - 1):
        with pytest.raises(InvalidArgument):
            read(data[:size])
    with pytest.raises(InvalidArgument):
        read(data + b"\0")


def test_another_version_is_refused_by_its_number() -> None:
    data = bytearray(write(FRAMES))
    struct.pack_into(">I", data, 11, 2)
    with pytest.raises(InvalidArgument, match="version 2, this server reads 1"):
        read(bytes(data))
