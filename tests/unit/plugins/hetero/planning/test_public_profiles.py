"""The cheapest cut of networks that others have measured, whose profiles are in `profiles`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.plugins.hetero.planning.placement import LayerCosts, placed

_FILE = Path(__file__).parent / "profiles" / "profiles.json"
_PROFILES: dict[str, Any] = json.loads(_FILE.read_text())


@pytest.mark.parametrize("copies", [1.0, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("name", _PROFILES)
def test_of_a_network_that_is_slower_on_one_device_throughout_that_device_gets_nothing(
    name: str, copies: float
) -> None:
    profile = _PROFILES[name]
    costs = LayerCosts(
        [
            {"ACCELERATOR": took / 1e3, "PROCESSOR": took / 1e3 * profile["ratio"]}
            for took in profile["milliseconds"]
        ],
        [(maker, readers, took / 1e3 * copies) for maker, readers, took in profile["tensors"]],
    )
    count = len(costs.seconds)
    assert placed(costs, ["PROCESSOR"] * count) == ["ACCELERATOR"] * count
