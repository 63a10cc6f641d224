"""Operators on texts, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, Final

import numpy as np
from onnx import helper
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_tfidf_vectorizer import TfIdfVectorizer as OpTfIdfVectorizer

from headrace.runtime.network.n_grams import NGrams
from headrace.runtime.network.reference.steps import refuse_steps

try:
    import re2
except ImportError:  # no wheel for this platform
    re2 = None

_MOST_OF_A_PATTERN: Final = 1024
_MOST_BYTES_OF_AN_EXPRESSION: Final = 1 << 20


class StringNormalizer(OpRun):
    """Drops texts that are stop words, and no others. If none is left, it returns one empty text.

    https://onnx.ai/onnx/operators/onnx__StringNormalizer.html
    """

    def _run(
        self,
        x: Any,
        case_change_action: str = "NONE",
        is_case_sensitive: int = 0,
        locale: str | None = None,  # noqa: ARG002 - the change of case is Unicode's own
        stopwords: list[str] | None = None,
    ) -> tuple[Any, ...]:
        if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
            raise ValueError(f"texts of shape {x.shape}, neither [C] nor [1, C]")
        changes: dict[str, Callable[[str], str]] = {
            "LOWER": str.lower,
            "UPPER": str.upper,
            "NONE": str,
        }
        change = changes[case_change_action]
        compare: Callable[[str], str] = str if is_case_sensitive else str.lower
        dropped = {compare(word) for word in stopwords or ()}
        texts = map(str, x.reshape(-1).tolist())
        kept = [change(text) for text in texts if compare(text) not in dropped] or [""]
        return (np.array(kept, object).reshape((*x.shape[:-1], len(kept))),)


class RegexFullMatch(OpRun):
    """Matches in time proportional to the length of the text, and lets other threads run."""

    pattern: Any

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if re2 is None:
            raise NotImplementedError("RegexFullMatch: the package google-re2 is not installed")
        if isinstance(self.pattern, str):  # it may be a reference to a function's attribute
            _expression(self.pattern)

    def _run(self, x: Any, pattern: Any = None) -> tuple[Any, ...]:
        expression = _expression(pattern)
        matched = [expression.fullmatch(text) is not None for text in x.reshape(-1).tolist()]
        return (np.array(matched, np.bool_).reshape(x.shape),)


@lru_cache(maxsize=64)
def _expression(pattern: str) -> Any:
    """RE2's expression. No other thread of the process runs while RE2 compiles one, so what it may
    be made of is bounded: a pattern of 1.2 million characters takes half a minute, and a short one
    may stand for as many states."""
    if len(pattern) > _MOST_OF_A_PATTERN:
        raise ValueError(
            f"a RegexFullMatch takes a pattern of at most {_MOST_OF_A_PATTERN:,} characters here, "
            f"not of {len(pattern):,}; use a shorter one, or another device"
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_BYTES_OF_AN_EXPRESSION
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        if "too large" in reason:  # RE2 does not say what would be small enough
            reason += (
                f"; it takes more than {_MOST_BYTES_OF_AN_EXPRESSION >> 20} MiB, the most here"
            )
        raise ValueError(f"{pattern!r} is not an RE2 expression: {reason}") from None


class TfIdfVectorizer(OpTfIdfVectorizer):
    """Refuses attributes with which onnx's operator would hardly end, and takes a bounded number of
    steps.

    https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html
    """

    def __init__(self, node: Any, *arguments: Any) -> None:
        # An attribute that a function hands on has no value here. onnx's operator raises then.
        known = [attribute for attribute in node.attribute if not attribute.ref_attr_name]
        given: dict[str, Any] = {
            attribute.name: helper.get_attribute_value(attribute) for attribute in known
        }
        wrong = NGrams(
            pool=len(given.get("pool_int64s") or given.get("pool_strings") or ()),
            starts=given.get("ngram_counts", ()),
            places=given.get("ngram_indexes", ()),
            shortest=given.get("min_gram_length", 1),
            longest=given.get("max_gram_length", 1),
            skips=given.get("max_skip_count", 0),
            weights=len(given.get("weights", ())),
        ).refusal
        if wrong is not None and len(known) == len(node.attribute):
            raise ValueError(wrong)
        super().__init__(node, *arguments)  # type: ignore[no-untyped-call]

    def _run(self, x: Any, **options: Any) -> tuple[Any, ...]:  # type: ignore[override]
        skips, longest = options["max_skip_count"], options["max_gram_length"]
        rows = prod(x.shape[:-1])
        refuse_steps(x.size * (skips + 1) * min(longest, len(self.ngram_counts_)))
        refuse_steps(rows * self.output_size_)
        return (*super()._run(x, **options),)  # type: ignore[no-untyped-call]
