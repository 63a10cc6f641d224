"""TfIdfVectorizer, as onnx's reference evaluator should compute it.

https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html
"""

from __future__ import annotations

from math import prod
from typing import Any

from onnx import helper
from onnx.reference.ops.op_tfidf_vectorizer import TfIdfVectorizer as OpTfIdfVectorizer

from headrace.runtime.network.n_grams import NGrams
from headrace.runtime.network.reference.steps import refuse_steps


class TfIdfVectorizer(OpTfIdfVectorizer):
    """Refuses attributes with which onnx's operator would hardly end, and takes a bounded number of
    steps."""

    def __init__(self, node: Any, *arguments: Any) -> None:
        # An attribute that a function hands on has no value here. onnx's operator raises then.
        known = [each for each in node.attribute if not each.ref_attr_name]
        given: dict[str, Any] = {each.name: helper.get_attribute_value(each) for each in known}
        wrong = NGrams(
            pool=len(given.get("pool_int64s") or given.get("pool_strings") or ()),
            starts=given.get("ngram_counts", ()),
            places=given.get("ngram_indexes", ()),
            shortest=given.get("min_gram_length", 1),
            longest=given.get("max_gram_length", 1),
            skips=given.get("max_skip_count", 0),
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
