"""What a TfIdfVectorizer must keep to, so that a load and a run of it end.

Backends count from one start in the pool to the next, and look at a row once for each number of
skips. Not all of them look whether the numbers make sense, and no cancel stops them.

https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

MOST_SKIPS: Final = 256
MOST_TERMS: Final = 16_777_216


@dataclass(frozen=True, slots=True)
class NGrams:
    """The attributes of a TfIdfVectorizer.

    Attributes:
        pool: the number of integers or texts in the pool.
        starts: where the 1-grams, the 2-grams, … start in the pool (`ngram_counts`).
        places: the place in the output for each n-gram (`ngram_indexes`).
        shortest: `min_gram_length`.
        longest: `max_gram_length`.
        skips: `max_skip_count`.
        weights: the number of `weights`; 0 if the layer has none.
    """

    pool: int
    starts: Sequence[int]
    places: Sequence[int]
    shortest: int
    longest: int
    skips: int
    weights: int

    @property
    def refusal(self) -> str | None:
        """Why no device may load the layer; None if nothing is wrong."""
        bounds = [0, *self.starts, self.pool]
        if any(end < start for start, end in pairwise(bounds)):
            return f"ngram_counts do not ascend from 0 to the {self.pool:,} elements of the pool"
        if not 1 <= self.shortest <= self.longest:
            return f"n-grams cannot have {self.shortest:,} to {self.longest:,} elements"
        if not 0 <= self.skips <= MOST_SKIPS:
            return f"max_skip_count is {self.skips:,}; 0 to {MOST_SKIPS:,} are allowed"
        lengths = (end - start for start, end in pairwise(bounds[1:]))
        grams = sum(length // size for size, length in enumerate(lengths, 1))
        if len(self.places) < grams:
            return f"ngram_indexes has {len(self.places)} elements for {grams} n-grams"
        if self.weights not in (0, len(self.places)):
            return f"{self.weights} weights do not fit {len(self.places)} ngram_indexes"
        if self.places and not 0 <= min(self.places) <= max(self.places) < MOST_TERMS:
            return f"ngram_indexes are not between 0 and {MOST_TERMS - 1:,}"
        return None
