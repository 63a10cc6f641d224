"""Layers of texts that ONNX Runtime loads and must not run, or takes very long to load or to free.

A session ends with the interpreter held, and frees a layer's texts and n-grams one by one. That
takes up to half a microsecond each, measured with LabelEncoder, CategoryMapper, OneHotEncoder and
TfIdfVectorizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import onnx_ir as ir

from headrace.runtime.intake.naming import walk

_MOST_OF_A_PATTERN: Final = 16_384
_MOST_KEPT: Final = 100_000
_NOT_KEPT: Final = frozenset(["nodes_modes"])
"""Names among few, which a layer keeps as numbers."""


def kept(node: ir.Node) -> int:
    """How many texts and n-grams a session keeps for the node, each in memory of its own."""
    if node.op_type == "Constant":
        return 0  # one tensor, which is freed in no time
    count = 0
    for name, attribute in node.attributes.items():
        if attribute.is_ref() or name in _NOT_KEPT:
            continue
        if attribute.type == ir.AttributeType.STRINGS or name == "pool_int64s":
            count += len(attribute.value)
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype.is_string():
            count += attribute.as_tensor().size
    return count


def too_many(model: ir.Model) -> str | None:
    """Why the server's process runs no layer of the model that keeps texts: there are too many in
    all layers together. None if it runs them."""
    total = sum(map(kept, walk(model.graph)))
    if total <= _MOST_KEPT:
        return None
    return (
        f"the network's layers keep {total:,} texts and n-grams, and freeing them would stop the "
        f"server's other threads; at most {_MOST_KEPT:,} are allowed, unless the server is started "
        "with --isolate-devices"
    )


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
