"""The requests that run on a network before it takes requests from clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The requests of a warm-up.

    Attributes:
        count: how many requests run, one after the other.
        shapes: the shapes of inputs whose sizes are not all fixed. A size that is not given is 1.
        random: the inputs that get random numbers instead of zeros: from 0 to 1, or 0 and 1 where
            the type is not FLOAT or DOUBLE.
        raw: the files that hold the bytes of inputs.
        file: a file with the inputs' arrays, as ``numpy.savez`` writes it; None for zeros.
        stamp: shows whether the files have changed. It makes the load of a network another one.
    """

    count: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    random: frozenset[str] = frozenset()
    raw: Mapping[str, Path] = field(default_factory=dict)
    file: Path | None = None
    stamp: tuple[int, ...] = ()
