"""onnx's reference evaluator, with its errors corrected or the affected layers refused.

`refusals` has what is refused. What a case of ONNX's or a network of the zoo needs has an operator
of its own here.

A RegexFullMatch is evaluated by RE2, whose syntax ONNX specifies. Python's `re` takes exponential
time for some expressions, and no other thread of the process runs meanwhile. For the same reason,
a layer takes and makes a bounded number of texts (`texts`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpFunctionContextDependant

from headrace.runtime.network.reference.control import Loop, Optional, Scan
from headrace.runtime.network.reference.norms import (
    LRN,
    SOFTMAXES,
    BatchNormalization,
    LpNormalization,
)
from headrace.runtime.network.reference.predictors import TreeEnsembleClassifier
from headrace.runtime.network.reference.refusals import refusing
from headrace.runtime.network.reference.regions import RoiAlign
from headrace.runtime.network.reference.sequences import (
    RegexFullMatch,
    StringNormalizer,
    TfIdfVectorizer,
)
from headrace.runtime.network.reference.sums import with_wide_sums
from headrace.runtime.network.reference.texts import with_few_texts
from headrace.runtime.network.reference.windows import (
    STFT,
    AveragePool,
    ConvTranspose,
    GatherElements,
    GlobalMaxPool,
    LpPool,
    MaxPool,
    Pad,
)
from headrace.runtime.network.values import Value


class CorrectedEvaluator(ReferenceEvaluator):
    """Takes the same arguments as onnx's evaluator. A layer that it cannot compute raises when the
    evaluator is made, and so do functions with an overload, of which onnx's takes any."""

    def __init__(self, proto: Any, **options: Any) -> None:
        functions = (*getattr(proto, "functions", ()), *options.get("functions", ()))
        if any(getattr(function, "overload", "") for function in functions):
            raise NotImplementedError("functions with an overload")
        # The evaluators of bodies and functions get the corrected operators here, too.
        super().__init__(proto, **{**options, "new_ops": [*_CORRECTED]})

    def run_layers_by(self, run: Callable[..., Any]) -> None:
        """Runs each layer by `run(evaluate, layer, *inputs, **options)`, which is to return
        `evaluate(*inputs, **options)`. A body has an evaluator of its own.

        Args:
            run: a function. It may not refer to the evaluator.
        """
        for node in self.rt_nodes_:  # the copy's method, so that no node refers to itself
            node.run = partial(run, copy(node).run, node.onnx_node)

    def _init(self) -> None:
        try:
            super()._init()
        finally:
            # Nodes that refer to the evaluator would stay in memory, with its copy of the weights,
            # until Python's garbage collector looks at them.
            for node in self.rt_nodes_:
                node.run_params["log"] = _no_log
                if isinstance(node, OpFunctionContextDependant):
                    node.impl_, node.parent = None, weakref.proxy(self)

    def _load_impl(self, node: Any, *arguments: Any) -> Any:
        operator = with_wide_sums(node.op_type, super()._load_impl(node, *arguments))
        return with_few_texts(node.op_type, refusing(node.op_type, operator))


def _no_log(*_: object) -> None:
    pass


def answer(output: Any, dtype: ir.DataType) -> Value:
    """A result as an output of the network. It is a copy with the port's type and strings as
    objects, and never a view of an input. onnx's operators do not always return the type that ONNX
    specifies."""
    if isinstance(output, list):
        return [answer(element, dtype) for element in output]
    array = np.array(output)
    if array.dtype.kind in "SUO":
        return array.astype(object)
    return array.astype(dtype.numpy(), copy=False)


_CORRECTED = (
    *SOFTMAXES,
    AveragePool,
    BatchNormalization,
    ConvTranspose,
    GatherElements,
    GlobalMaxPool,
    LRN,
    Loop,
    LpNormalization,
    LpPool,
    MaxPool,
    Optional,
    Pad,
    RegexFullMatch,
    RoiAlign,
    STFT,
    Scan,
    StringNormalizer,
    TfIdfVectorizer,
    TreeEnsembleClassifier,
)
