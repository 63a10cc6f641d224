"""With which attributes a TfIdfVectorizer ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.runtime.network.n_grams import MOST_SKIPS, MOST_TERMS, NGrams

GOOD = NGrams(pool=4, starts=[0, 2], places=[0, 1, 2], shortest=1, longest=2, skips=0, weights=0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"starts": [0, 4]},
        {"starts": [0, 2, 4]},
        {"longest": 2**40},
        {"skips": MOST_SKIPS},
        {"weights": 3},
        {"places": [0, 1, MOST_TERMS - 1]},
        {"starts": [], "places": []},
    ],
    ids=str,
)
def test_attributes_that_make_sense_are_not_refused(changes: dict[str, Any]) -> None:
    if changes.get("starts") == [0, 4]:
        changes = {**changes, "places": range(4)}
    assert replace(GOOD, **changes).refusal is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"starts": [0, 2**31]}, "ngram_counts do not ascend from 0 to the 4 elements"),
        ({"starts": [0, 5]}, "do not ascend"),
        ({"starts": [2, 0]}, "do not ascend"),
        ({"starts": [-1, 2]}, "do not ascend"),
        ({"skips": MOST_SKIPS + 1}, "max_skip_count is 257; 0 to 256 are allowed"),
        ({"skips": 2**60}, "max_skip_count"),
        ({"skips": -1}, "max_skip_count"),
        ({"shortest": 0}, "n-grams cannot have 0 to 2 elements"),
        ({"shortest": 3}, "n-grams cannot have 3 to 2 elements"),
        ({"places": [0, 1]}, "ngram_indexes has 2 elements for 3 n-grams"),
        ({"weights": 2}, "2 weights do not fit 3 ngram_indexes"),
        ({"weights": 4}, "4 weights do not fit 3 ngram_indexes"),
        ({"places": [0, 1, -1]}, "ngram_indexes are not between"),
        ({"places": [0, 1, MOST_TERMS]}, "ngram_indexes are not between"),
    ],
    ids=str,
)
def test_attributes_with_which_a_layer_would_hardly_end_are_refused(
    changes: dict[str, Any], why: str
) -> None:
    assert why in str(replace(GOOD, **changes).refusal)
