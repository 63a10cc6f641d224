"""What goes in comes out, and nothing that the other process sends is believed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.processes import frames
from headrace.server.processes.frames import Broken, Frame, Frames


def fed(data: bytes, cuts: Sequence[int] = (), most: int = 1000) -> list[Frame]:
    """The frames in `data`, which comes in pieces."""
    reader = Frames(most)
    found: list[Frame] = []
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    start = 0
    for end in ends:
        found += reader.feed(memoryview(bytearray(data[start:end])))
        start = end
    return found


@given(
    st.lists(
        st.tuples(
            st.integers(0, 255),
            st.integers(0, 255),
            st.integers(0, 2**32 - 1),
            st.binary(max_size=100),
        ),
        max_size=6,
    ),
    st.lists(st.integers(0, 600)),
)
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[tuple[int, int, int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(
        frames.header(kind, call, len(body), flags) + body for kind, flags, call, body in sent
    )
    assert fed(data, cuts) == [Frame(*each) for each in sent]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_any_bytes_are_frames_or_broken(data: bytes, cuts: list[int]) -> None:
    try:
        found = fed(data, cuts)
    except Broken:
        return
    assert sum(len(each.body) + 10 for each in found) <= len(data)


def test_a_frame_is_refused_for_its_size_before_its_body_has_come() -> None:
    with pytest.raises(Broken, match="1001 bytes"):
        fed(frames.header(frames.MESSAGE, 1, 1001))
    assert fed(frames.header(frames.MESSAGE, 1, 1000)) == []


@pytest.mark.parametrize("body", [b"", b"123", b"12345"])
def test_a_number_has_four_bytes(body: bytes) -> None:
    with pytest.raises(Broken):
        frames.parse_number(body)
    assert frames.parse_number(frames.number(7)) == 7


@pytest.mark.parametrize("body", [b"", frames.place(1, 2)[:-1], frames.place(1, 2) + b"\0"])
def test_a_place_in_shared_memory_ends_the_frame(body: bytes) -> None:
    with pytest.raises(Broken):
        frames.parse_place(body, 0)
