"""The bytes that an exported network keeps of its subgraphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.hetero.running.subgraph import SubgraphExport, read_exports, write_exports
from headrace.runtime.virtual.flow import Ends

EXPORTS = (
    SubgraphExport(
        "CPU", "x86_64", "1.2", b"native bytes", layers=("a", "b"), ends=Ends(("x",), ("t",))
    ),
    SubgraphExport(
        "MULTI:[BATCH:CPU(8)]", "TEMPLATE", "", layers=("ü",), ends=Ends(("t",), ("y",))
    ),
)
WHOLE = {"notes": ["it quantises"]}
NAMES = st.lists(st.text(), max_size=3).map(tuple)


def test_what_was_written_is_read() -> None:
    assert read_exports(write_exports(WHOLE, EXPORTS)) == (WHOLE, EXPORTS)


@given(
    st.lists(
        st.builds(
            SubgraphExport,
            st.text(),
            st.text(),
            st.text(),
            st.binary(),
            layers=NAMES,
            ends=st.builds(Ends, NAMES, NAMES),
        ),
        max_size=4,
    )
)
def test_whatever_was_written_is_read(exports: list[SubgraphExport]) -> None:
    assert read_exports(write_exports(WHOLE, exports)) == (WHOLE, tuple(exports))
