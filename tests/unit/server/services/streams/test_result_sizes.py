"""What is known of results before they are computed, from the declarations of outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import pytest

from headrace.runtime.errors import NotFound
from headrace.runtime.network.network import Port
from headrace.server.services.streams.result_sizes import NetworkResults, ResultSizes

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
MEBIBYTE = 1 << 20
GUESS = 4 * MEBIBYTE
ROOM = 2048
"""The most that a reply takes beside the elements of its outputs."""


def sizes(*outputs: Port, inputs: Sequence[Port] = ()) -> ResultSizes:
    return ResultSizes(inputs, outputs, GUESS)


def given(**shapes: Sequence[int]) -> Any:
    def find() -> Mapping[str, Sequence[int]]:
        return shapes

    return find


IMAGE = Port("x", FLOAT, ("n", 3, "h", "w"))


@pytest.mark.parametrize(
    ("output", "elements"),
    [
        pytest.param(Port("y", FLOAT, (MEBIBYTE,)), 4 * MEBIBYTE, id="fixed"),
        pytest.param(Port("y", INT64, ()), 8, id="scalar"),
        pytest.param(Port("y", FLOAT, (0, 5)), 0, id="empty"),
        pytest.param(Port("y", FLOAT, ("n", 1000)), 2 * 1000 * 4, id="batch"),
        pytest.param(Port("y", FLOAT, ("n", 3, "h", "w")), 2 * 3 * 64 * 32 * 4, id="image"),
        pytest.param(Port("y", ir.DataType.BFLOAT16, ("w", "w")), 32 * 32 * 2, id="square"),
    ],
)
def test_a_size_follows_from_the_declared_shape_and_the_shapes_of_inputs(
    output: Port, elements: int
) -> None:
    expected = sizes(output, inputs=[IMAGE]).expected(given(x=(2, 3, 64, 32)), ())
    assert elements < expected < elements + ROOM


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(Port("y", FLOAT, None), id="no rank"),
        pytest.param(Port("y", FLOAT, (None, 4)), id="no name"),
        pytest.param(Port("y", FLOAT, ("boxes", 4)), id="a symbol of the output alone"),
        pytest.param(Port("y", ir.DataType.STRING, (1,)), id="strings"),
        pytest.param(Port("y", FLOAT, (1,), kind="sequence"), id="sequence"),
    ],
)
def test_a_size_that_does_not_follow_is_guessed_until_there_is_a_result(output: Port) -> None:
    found = sizes(Port("z", FLOAT, (1,)), output, inputs=[IMAGE])
    asked = given(x=(2, 3, 64, 32))
    assert found.expected(asked, ()) == GUESS
    found.saw(100_000, larger=False)
    found.saw(90_000, larger=False)
    assert found.expected(asked, ()) == 100_000, "the largest counts"
    assert found.expected(asked, ("z",)) < ROOM, "but not for the other output alone"


@pytest.mark.parametrize(
    "shapes", [{}, {"x": ()}, {"x": (2,)}], ids=["absent", "a scalar", "of a lower rank"]
)
def test_a_request_that_will_fail_has_no_known_size(shapes: dict[str, tuple[int, ...]]) -> None:
    found = sizes(Port("y", FLOAT, ("h",)), inputs=[IMAGE])
    assert found.expected(given(**shapes), ()) == GUESS


def test_a_request_that_says_negative_sizes_takes_room_all_the_same() -> None:
    found = sizes(Port("y", FLOAT, ("n",)), inputs=[IMAGE])
    assert 0 < found.expected(given(x=(-(2**60), 3, 1, 1)), ()) < ROOM


def test_only_the_outputs_that_are_asked_for_count() -> None:
    found = sizes(Port("y", FLOAT, (MEBIBYTE,)), Port("z", FLOAT, (1,)))
    assert found.expected(given(), ("z",)) < ROOM
    assert found.expected(given(), ("y",)) > 4 * MEBIBYTE
    assert found.expected(given(), ("unknown",)) == GUESS


def test_a_declaration_that_does_not_hold_counts_no_longer() -> None:
    found = sizes(Port("y", FLOAT, (1,)))
    found.saw(MEBIBYTE, larger=True)
    assert found.expected(given(), ()) == MEBIBYTE


def test_requests_that_wait_for_a_load_take_little_room_until_it_has_ended() -> None:
    class Networks:
        executable: Any = None

        def find(self, _name: str, _version: str) -> Any:
            return self

    networks: Any = Networks()
    results = NetworkResults(networks, 128 * GUESS)
    assert results.expected("a", "", (), given()).size < ROOM
    networks.executable = Networks()
    networks.executable.inputs, networks.executable.outputs = (), (Port("y", FLOAT, (10**6,)),)
    assert results.expected("a", "", (), given()).size > 4_000_000


def test_the_results_of_each_network_are_told_apart() -> None:
    class Networks:
        asked = 0
        inputs: tuple[Port, ...] = ()

        def find(self, name: str, version: str) -> Any:
            self.asked += 1
            if name == "missing":
                raise NotFound("there is none")
            self.outputs = (Port("y", FLOAT, (int(version),)),)
            self.executable = self
            return self

    networks: Any = Networks()
    results = NetworkResults(networks, 128 * GUESS)
    for _ in range(2):
        large = results.expected("a", "1000000", (), given())
        small = results.expected("a", "1", (), given())
        unknown = results.expected("missing", "", (), given())
        assert large.size > 4_000_000
        assert small.size < ROOM
        assert unknown.size == GUESS
    assert networks.asked == 3, "each is looked up once"
    unknown.came(10)
    assert results.expected("missing", "", (), given()).size == 10
    for number in range(1000):  # names that a client makes up
        results.expected("missing", str(number), (), given())
    assert results.expected("a", "1", (), given()).size == small.size
