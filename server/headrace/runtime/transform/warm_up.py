"""Requests that run on a network before it takes anybody's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WarmUp:
    """
    Attributes:
        count: how many requests, one after the other.
        shapes: of inputs whose sizes are not all fixed; a size that nobody says is 1.
        file: arrays of inputs, as ``numpy.savez`` writes them; None for zeros.
    """

    count: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    file: Path | None = None
