"""Version policies: which of the versions that are there are loaded."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.server.repository.policy import parse_policy


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        (None, {"10"}),
        ("all", {"2", "9", "10"}),
        ("latest", {"10"}),
        ({"latest": 2}, {"9", "10"}),
        ({"latest": 5}, {"2", "9", "10"}),
        ({"specific": [2, 3]}, {"2"}),
        ({"specific": ["9"]}, {"9"}),
        ({"all": {}}, {"2", "9", "10"}),
        ({"latest": {"num_versions": 2}}, {"9", "10"}),
        ({"latest": {}}, {"10"}),
        ({"specific": {"versions": [2, 10]}}, {"2", "10"}),
    ],
)
def test_a_policy_chooses_by_number_in_our_form_and_in_tritons(said: Any, chosen: set[str]) -> None:
    assert parse_policy(said, "version_policy").choose(["9", "2", "10"]) == chosen


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        [],
        {},
        "newest",
        {"latest": 0},
        {"latest": True},
        {"latest": "2"},
        {"latest": 1001},
        {"specific": 3},
        {"specific": ["a"]},
        {"specific": [0]},
        {"all": 1},
        {"all": {}, "latest": 1},
        {"specific": {"versions": None}},
    ],
)
def test_anything_else_is_refused_naming_the_field(wrong: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_policy(wrong, "network.toml: version_policy")
    assert caught.value.field == "network.toml: version_policy"
