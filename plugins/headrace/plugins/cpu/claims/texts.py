"""Layers of texts that ONNX Runtime loads and must not run, or takes very long to load or to free.

A session ends with the interpreter held, and frees a layer's texts and n-grams one by one. That
takes up to half a microsecond each, measured with LabelEncoder, CategoryMapper, OneHotEncoder and
TfIdfVectorizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from types import MappingProxyType
from typing import Final, cast

import onnx_ir as ir

from headrace.runtime.intake.naming import walk
from headrace.runtime.network.constants import tensor_of
from headrace.runtime.network.n_grams import NGrams

_MOST_OF_A_PATTERN: Final = 16_384
_MOST_KEPT: Final = 100_000
_LONG: Final = 512
"""Characters after which a text counts once more."""

_IN_A_TENSOR: Final = 8
"""So many texts of a constant count as one, because they lie side by side."""

_TABLES: Final = frozenset(["StringNormalizer", "TfIdfVectorizer"])
"""The operators of ONNX's own domain that keep a table."""

_NUMBERS: Final = frozenset(["cats_int64s", "pool_int64s"])
"""Lists of numbers of which each is in memory of its own."""


def may_keep(operators: Iterable[tuple[str, str]]) -> bool:
    """Whether layers of these domains and types may keep texts or n-grams."""
    return any(domain not in ("", "ai.onnx") or name in _TABLES for domain, name in operators)


class TextCounts:
    """How many texts and n-grams a session keeps for the layers of a model."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._called: dict[ir.OperatorIdentifier, int] = {}
        self._passed = max(map(_texts, self._given(model)), default=0)
        self._total = sum(map(self.by, walk(model.graph)))

    @property
    def refusal(self) -> str | None:
        """Why the server's process runs no layer that keeps any: all layers together keep too many.
        None if it runs them."""
        if self._total <= _MOST_KEPT:
            return None
        return (
            f"the network's layers keep {self._total:,} texts and n-grams, and freeing them would "
            f"stop the server's other threads; more than {_MOST_KEPT:,} run in a process of their "
            "own, unless the device has ISOLATION=NONE"
        )

    def by(self, node: ir.Node) -> int:
        """How many are kept for the node. A long text counts more than once."""
        called = node.op_identifier()
        if called not in self._functions:
            return self._by_operator(node)
        if called not in self._called:
            self._called[called] = sum(map(self.by, self._functions[called].all_nodes()))
        return self._called[called]

    def _by_operator(self, node: ir.Node) -> int:
        lists = node.attributes.values()
        if node.op_type == "Constant":
            return sum(map(_texts, lists)) // _IN_A_TENSOR
        if node.domain in ("", "ai.onnx") and node.op_type not in _TABLES:
            return 0
        return sum(self._passed if attribute.is_ref() else _texts(attribute) for attribute in lists)

    def _given(self, model: ir.Model) -> Iterator[ir.Attr]:
        """The attributes that functions may get."""
        for function in model.functions.values():
            yield from function.attributes.values()
        for nodes in (walk(model.graph), *(each.all_nodes() for each in self._functions.values())):
            for node in nodes:
                if node.op_identifier() in self._functions:
                    yield from node.attributes.values()


def _texts(attribute: ir.Attr) -> int:
    """The texts, and the numbers that are kept as texts are, of an attribute."""
    texts: Iterable[Sized] = ()
    if attribute.is_ref() or attribute.name == "nodes_modes":  # which a tree keeps as numbers
        return 0
    if attribute.name in _NUMBERS:
        return len(attribute.value)
    if attribute.type == ir.AttributeType.STRINGS:
        texts = attribute.as_strings()
    elif attribute.type == ir.AttributeType.TENSOR and tensor_of(attribute).dtype.is_string():
        texts = cast(ir.StringTensor, tensor_of(attribute)).string_data()
    return sum(1 + len(text) // _LONG for text in texts)


def _tf_idf(node: ir.Node) -> str | None:
    """The backend reads one index for each n-gram in the pool, even past the last index."""
    ints = node.attributes.get_ints
    pool = ints("pool_int64s", None)
    return NGrams(
        pool=len(pool if pool is not None else node.attributes.get_strings("pool_strings", ())),
        starts=ints("ngram_counts", ()),
        places=ints("ngram_indexes", ()),
        shortest=node.attributes.get_int("min_gram_length", 1),
        longest=node.attributes.get_int("max_gram_length", 1),
        skips=node.attributes.get_int("max_skip_count", 0),
        weights=len(node.attributes.get_floats("weights", ())),
    ).refusal


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
