"""What the instances of the suite share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _modules_are_not_searched_for_garbage() -> Iterator[None]:
    """Every test looks for leaks, and collects garbage for that. What the imports have left, half a
    million objects, is no garbage and need not be gone through each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
