"""The bytes that an exported network keeps of its subgraphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.hetero.container import Frame, read, write
from headrace.plugins.hetero.flow import Ends

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
