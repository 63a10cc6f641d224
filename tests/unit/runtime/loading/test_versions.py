"""Which version of a network gets the next request."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.loading.versions import MAX_SHARES, SmoothChoice, check_shares, weights

versions = st.integers(1, 10**17).map(str)
shares = st.dictionaries(versions, st.integers(0, 100), max_size=5).filter(
    lambda shares: sum(shares.values()) <= 100
)


def choices(candidates: dict[str, int], count: int) -> list[str]:
    choice = SmoothChoice(candidates)
    return [choice.next() for _ in range(count)]


def test_a_choice_spreads_candidates_as_evenly_as_their_weights_let_it() -> None:
    assert "".join(choices({"a": 5, "b": 1, "c": 1}, 14)) == "aabacaaaabacaa"
    assert "".join(choices({"a": 1, "b": 1}, 6)) == "ababab"


@given(st.dictionaries(versions, st.integers(1, 50), min_size=1, max_size=6))
def test_among_as_many_choices_as_the_weights_add_up_to_each_has_its_share(
    candidates: dict[str, int],
) -> None:
    whole = sum(candidates.values())
    made = choices(candidates, 2 * whole)
    assert Counter(made[:whole]) == Counter(made[whole:]) == Counter(candidates)


@given(st.integers(1, 99))
def test_a_small_share_never_comes_in_bursts(share: int) -> None:
    made = choices({"1": 100 - share, "2": share}, 100)
    for end in range(1, 101):
        expected = end * share / 100
        assert abs(made[:end].count("2") - expected) < 1.0


@pytest.mark.parametrize(
    ("ready", "said", "expected"),
    [
        ("1 2 10", {}, {"10": 100}),
        ("1 2", {"2": 10}, {"1": 90, "2": 10}),
        ("1 2 3", {"2": 10}, {"3": 90, "2": 10}),
        ("1 2 3", {"1": 90, "2": 10}, {"1": 90, "2": 10}),
        ("1 2", {"2": 0}, {"1": 100}),
        ("1 2", {"1": 100}, {"1": 100}),
        ("1", {"1": 30, "2": 70}, {"1": 30}),
        ("1 3", {"1": 30, "2": 70}, {"1": 30, "3": 70}),
        ("2", {"2": 0}, {"2": 100}),
    ],
)
def test_what_shares_leave_over_goes_to_the_highest_version_that_they_do_not_name(
    ready: str, said: dict[str, int], expected: dict[str, int]
) -> None:
    assert weights(ready.split(), said) == expected


@given(st.sets(versions, min_size=1), shares)
def test_there_is_always_a_version_to_choose_and_it_is_ready(
    ready: set[str], said: dict[str, int]
) -> None:
    found = weights(ready, said)
    assert found
    assert found.keys() <= ready
    assert all(weight > 0 for weight in found.values())


@pytest.mark.parametrize(
    "wrong",
    [{"1": -1}, {"1": 101}, {"1": 60, "2": 41}, {"one": 1}, {"01": 1}, {"": 1}, {"1" * 19: 1}],
)
def test_shares_are_per_cent_of_versions(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_shares(wrong)
    assert caught.value.field == "traffic"


def test_shares_are_bounded_in_number() -> None:
    with pytest.raises(InvalidArgument, match="at most 64"):
        check_shares({str(number): 0 for number in range(1, MAX_SHARES + 2)})


def test_choosing_again_and_again_keeps_to_the_shares() -> None:
    choice = SmoothChoice(weights({"1", "2"}, {"2": 10}))
    assert Counter(islice(iter(choice.next, None), 1000)) == {"1": 900, "2": 100}
