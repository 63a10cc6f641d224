"""A bound on what a layer computes step by step.

onnx's evaluator computes most layers with NumPy, and some in loops of Python, which no cancel ends.
A step takes about a microsecond there. The steps follow from attributes and values, so a request of
some bytes may ask for any number of them.
"""

from __future__ import annotations

from typing import Final

from headrace.runtime.errors import InvalidArgument

MOST_STEPS: Final = 8_388_608


def refuse_steps(count: float, most: int = MOST_STEPS) -> None:
    """Raises if these are more steps than a layer may take."""
    if count > most:
        raise InvalidArgument(
            f"{count:,.0f} steps are too many for one layer on this device: it takes at most "
            f"{most:,}; use another device"
        )
