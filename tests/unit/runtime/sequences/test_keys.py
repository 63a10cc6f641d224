"""The keys of a network that keeps states: read, written, and taken from a load's configuration."""

from __future__ import annotations

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.sequences.keys import (
    SEQUENCE_CAPACITY,
    SEQUENCE_IDLE_TIMEOUT,
    STATES,
    pairs,
    split,
    written,
)


def test_states_are_pairs_of_input_and_output() -> None:
    assert pairs(" h = hn,c=/lstm/out:0 ") == (("h", "hn"), ("c", "/lstm/out:0"))
    assert pairs("  ") == ()


@pytest.mark.parametrize("text", ["h", "h=", "=hn", "h=hn,", "h=hn=c", "h=hn;c=cn=", ","])
def test_what_is_no_list_of_pairs_is_refused_by_the_name_of_the_key(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"STATES cannot be .*'input=output'") as caught:
        split({"STATES": text})
    assert caught.value.field == "config['STATES']"


def test_a_long_list_of_states_is_taken_and_a_very_long_one_refused() -> None:
    names = {f"past_key_values.{number}.value": f"present.{number}.value" for number in range(500)}
    text = written(names)
    assert dict(pairs(text)) == names
    assert split({"STATES": text})[0] is not None
    with pytest.raises(InvalidArgument) as caught:
        split({"STATES": "a" * 100_000})
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("states", [{"a,b": "c"}, {"a": "b=c"}, {" a": "b"}, {"a": ""}, {"": "b"}])
def test_names_that_the_key_cannot_hold_are_refused(states: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="rename the tensors"):
        written(states)


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
