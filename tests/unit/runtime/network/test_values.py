"""What a value takes."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.runtime.network.values import Value, size_bytes

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 0),
        (ARRAY, 24),
        ([ARRAY, ARRAY, None], 48),
        (np.zeros((), np.int8), 1),
        (np.zeros((0, 5)), 0),
    ],
)
def test_the_size_is_that_of_the_elements(value: Value, size: int) -> None:
    assert size_bytes(value) == size
