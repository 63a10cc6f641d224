"""Layers of texts that ONNX Runtime loads and must not run, or takes very long to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

_MOST_OF_A_PATTERN: Final = 16_384


def _tf_idf(node: ir.Node) -> str | None:
    """The backend reads one index for each n-gram in the pool, even past the last index."""
    pool = node.attributes.get_ints("pool_int64s", None)
    size = len(pool if pool is not None else node.attributes.get_strings("pool_strings", ()))
    starts = [*node.attributes.get_ints("ngram_counts", ()), size]
    lengths = [end - start for start, end in pairwise(starts)]
    grams = sum(length // (index + 1) for index, length in enumerate(lengths))
    indexes = len(node.attributes.get_ints("ngram_indexes", ()))
    if min(lengths, default=0) < 0 or indexes < grams:
        return f"ngram_indexes has {indexes} elements for {grams} n-grams"
    return None


def _regex(node: ir.Node) -> str | None:
    """The backend's time to load a pattern grows with the square of its length, and no cancel stops
    it: 1.2 million characters take 40 s."""
    length = len(node.attributes.get_string("pattern", ""))
    if length <= _MOST_OF_A_PATTERN:
        return None
    return f"the pattern has {length:,} characters; at most {_MOST_OF_A_PATTERN:,} are allowed"


RULES: Final[Mapping[str, Callable[[ir.Node], str | None]]] = MappingProxyType(
    {"RegexFullMatch": _regex, "TfIdfVectorizer": _tf_idf}
)
