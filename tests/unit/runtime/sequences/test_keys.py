"""The keys of a network that keeps states: read, written, and taken from a load's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.sequences.keys import (
    SEQUENCE_CAPACITY,
    SEQUENCE_IDLE_TIMEOUT,
    STATES,
    Declaration,
    Shape,
    declarations,
    split,
    written,
)


def test_states_are_inputs_with_their_outputs() -> None:
    found = declarations(" h = hn,c=/lstm/out:0 ")
    assert found == (Declaration("h", "hn"), Declaration("c", "/lstm/out:0"))
    assert declarations("  ") == ()


@pytest.mark.parametrize(
    ("text", "shape", "initial"),
    [
        ("h=hn=2x1x128", (2, 1, 128), ""),
        ("h=hn = Nx?x0 ", ("N", None, 0), ""),
        ("h=hn=4=-1.5e-3", (4,), "-1.5e-3"),
        ("h=hn==inf", None, "inf"),
    ],
)
def test_sizes_and_a_first_value_may_follow(text: str, shape: Shape, initial: str) -> None:
    (found,) = declarations(text)
    assert found == Declaration("h", "hn", shape, initial)
    assert declarations(written([found])) == (found,)


@pytest.mark.parametrize(
    "text",
    [
        "h",
        "h=",
        "=hn",
        "h=hn,",
        "h=hn=c",
        "h=hn;c=cn=",
        ",",
        "h=hn=2x",
        "h=hn=-1",
        "h=hn=2X1",
        "h=hn=1=x",
        "h=hn=1=1_0",
        "h=hn=1=2=3",
        "h=hn=٣",
        "h=hn=1=" + "9" * 500,
        "h=hn=" + "9" * 5000,
    ],
)
def test_what_is_no_list_of_pairs_is_refused_by_the_name_of_the_key(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"STATES cannot be .*'input=output'") as caught:
        split({"STATES": text})
    assert caught.value.field == "config['STATES']"


def test_a_long_list_of_states_is_taken_and_a_very_long_one_refused() -> None:
    states = tuple(Declaration(f"past.{number}", f"present.{number}") for number in range(2000))
    text = written(states)
    assert declarations(text) == states
    assert split({"STATES": text})[0] is not None
    with pytest.raises(InvalidArgument) as caught:
        split({"STATES": "a" * 100_000})
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "state", [("a,b", "c"), ("a", "b=c"), (" a", "b"), ("a", ""), ("", "b"), ("a", "b", (-3,))]
)
def test_names_and_sizes_that_the_key_cannot_hold_are_refused(state: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgument, match="rename the tensors"):
        written([Declaration(*state)])


def test_a_loads_configuration_is_split_into_what_is_about_states_and_the_rest() -> None:
    own, rest = split({"STATES": "h=hn", "SEQUENCE_CAPACITY": "5", "NUM_STREAMS": "2"})
    assert own is not None
    assert (own[STATES], own[SEQUENCE_CAPACITY], own[SEQUENCE_IDLE_TIMEOUT]) == ("h=hn", 5, 60.0)
    assert rest == {"NUM_STREAMS": "2"}


def test_without_states_there_is_nothing_of_its_own() -> None:
    assert split({"NUM_STREAMS": "2"}) == (None, {"NUM_STREAMS": "2"})
    assert split({"STATES": "", "SEQUENCE_CAPACITY": "5"}) == (None, {})


def test_a_bound_on_sequences_without_states_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="give STATES too") as caught:
        split({"SEQUENCE_CAPACITY": "5"})
    assert caught.value.field == "config['SEQUENCE_CAPACITY']"


def test_states_belong_to_no_device_of_a_list() -> None:
    with pytest.raises(InvalidArgument, match="without a prefix") as caught:
        split({"CPU.STATES": "h=hn"})
    assert caught.value.field == "config['CPU.STATES']"


@pytest.mark.parametrize("key", ["SEQUENCE_CAPACITY", "SEQUENCE_IDLE_TIMEOUT"])
@pytest.mark.parametrize("text", ["0", "-1", "many", "1e300"])
def test_bounds_are_positive_numbers(key: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{key} cannot be"):
        split({"STATES": "h=hn", key: text})
