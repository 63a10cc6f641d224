"""onnx's reference evaluator, with its errors corrected or the affected layers refused.

The errors were found by running onnx's own backend cases through version 1.23. The evaluator

- stacks the values that a Loop collects as rows, whatever their rank,
- gives Softmax and similar operators of old operator sets the meaning of new ones,
- mixes the batch's statistics into a BatchNormalization that does not train, and gives the
  statistics of one that trains the type of the input,
- treats the sequences of a recurrent layer as equally long, and ignores its activations,
- knows no Upsample by an attribute and no Resize of operator set 10,
- takes one overload of a function for another, and does not hand its attributes on to functions of
  one or two numbers,
- wraps optionals,
- subtracts negative numbers from an L1 norm,
- takes the maximum over the wrong axes if a GlobalMaxPool does not have two spatial axes,
- normalises as many channels of an LRN as the batch has elements,
- rounds down if a MaxPool pads in front,
- cuts nothing off if a Pad is negative,
- takes an STFT's batch as its length if the signal has no axis for real and imaginary parts,
- gathers only from axes with few elements, and lets an index that is out of bounds wrap around,
- adds padding twice if a MaxPool rounds up,
- pads too little for the windows of a pool that have gaps,
- takes scales and zero points of a quantised matrix's rows for those of its columns,
- takes the wrong point if a Resize by pytorch_half_pixel makes one element,
- rounds the fractional depth of a OneHot up, and compares fractional indices as they are,
- inserts an element at the wrong place if it belongs at the end of a sequence,
- accepts lengths of a split that do not add up,
- ignores classes and weights of a loss that are too many,
- drops empty texts,
- continues an Attention's mask before operator set 24,
- caps the products that an Attention returns although its mode is 0,
- pools windows that are larger than the image,
- scans along the first axis and forwards alone,
- adds up a Mean in the shape of its first input,
- takes no single number for a Softsign or a ReduceLogSumExp,
- takes weights and biases of other groups in a ConvTranspose, and does not pad as an output_shape
  demands,
- counts a MaxPool's indices wrongly,
- takes unique parts along the wrong axis,
- does not accept a diagonal beyond the machine's integers,
- gives the mean of a LayerNormalization the precision of the input,
- counts a TfIdfVectorizer's terms for as long as its attributes say,
- does not take the limits of a NonMaxSuppression as scalars,
- takes as many samples for a RoiAlign as the sizes of regions ask for,
- follows the links of a tree that lead in a circle (`trees`), and
- reads several operators of ai.onnx.ml otherwise than ONNX (`predictors`).

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
from onnx import FunctionProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpFunctionContextDependant, OpRun
from onnx.reference.ops import load_op, op_gru, op_lstm, op_rnn
from onnx.reference.ops._op import OpRunBinary, OpRunUnary
from onnx.reference.ops.aionnxml.op_tree_ensemble_regressor import (
    TreeEnsembleRegressor as OpTreeEnsembleRegressor,
)
from onnx.reference.ops.op_hardmax import Hardmax as OpHardmax
from onnx.reference.ops.op_softmax import Softmax as OpSoftmax

from headrace.runtime.network.reference.control import Loop, Optional, Scan
from headrace.runtime.network.reference.losses import LOSSES
from headrace.runtime.network.reference.matrices import MatMulInteger, QLinearMatMul
from headrace.runtime.network.reference.norms import (
    BatchNormalization,
    LayerNormalization,
    LogSoftmax,
    LpNormalization,
    Softsign,
    opset_of,
)
from headrace.runtime.network.reference.parts import (
    CUMULATIONS,
    GatherElements,
    TreeEnsemble,
    Trilu,
    Unique,
)
from headrace.runtime.network.reference.predictors import (
    LinearClassifier,
    LinearRegressor,
    Normalizer,
    OneHotEncoder,
    Scaler,
    SVMClassifier,
    TreeEnsembleClassifier,
)
from headrace.runtime.network.reference.regions import NonMaxSuppression, RoiAlign
from headrace.runtime.network.reference.sequences import (
    Equal,
    OneHot,
    RegexFullMatch,
    SequenceInsert,
    SplitToSequence,
    StringConcat,
    StringNormalizer,
    StringSplit,
    TfIdfVectorizer,
)
from headrace.runtime.network.reference.signals import STFT, Attention
from headrace.runtime.network.reference.sums import Mean, ReduceLogSumExp, with_wide_sums
from headrace.runtime.network.reference.texts import with_few_texts
from headrace.runtime.network.reference.trees import of_trees
from headrace.runtime.network.reference.windows import (
    LRN,
    AveragePool,
    ConvTranspose,
    GlobalMaxPool,
    GridSample,
    LpPool,
    MaxPool,
    Pad,
    Resize,
    Upsample,
)
from headrace.runtime.network.values import Value

_SOFTMAX_OF_ONE_AXIS = 13
_ACTIVATIONS = {
    "RNN": ["tanh"],
    "GRU": ["sigmoid", "tanh"],
    "LSTM": ["sigmoid", "tanh", "tanh"],
}
"""The default functions of each recurrent layer, in one direction."""
_LAST_STATE = 7  # inputs 5 and 6 of a recurrent layer have a row for each sequence


class CorrectedEvaluator(ReferenceEvaluator):
    """Takes the same arguments as onnx's evaluator. A layer that it cannot compute raises when the
    evaluator is made. Functions with an overload get another name."""

    def __init__(self, proto: Any, **options: Any) -> None:
        for function in (*getattr(proto, "functions", ()), *options.get("functions", ())):
            _name_by_overload(function)
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
        if node.overload:
            key = node.domain, f"{node.op_type}:{node.overload}"
            return load_op(*key, self.opsets[node.domain], custom=self.functions_[key])
        operator = with_wide_sums(node.op_type, super()._load_impl(node, *arguments))
        if any(attribute.ref_attr_name for attribute in node.attribute):
            operator = _linked(operator)
        return with_few_texts(node.op_type, operator)


def _name_by_overload(function: Any) -> None:
    """onnx's evaluator knows functions by domain and name alone."""
    if isinstance(function, FunctionProto) and function.overload:
        function.name += f":{function.overload}"
        function.ClearField("overload")


def _linked(base: Any) -> Any:
    """An operator that takes the attributes of a function. onnx's operators of one number and of
    two do not."""
    if not isinstance(base, type) or not issubclass(base, OpRunUnary | OpRunBinary):
        return base

    class Linked(base):  # type: ignore[misc]
        def run(self, *inputs: Any, **options: Any) -> Any:
            return OpRun.run(self, *inputs, **options)  # type: ignore[no-untyped-call]

    Linked.__name__ = base.__name__
    return Linked


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


def _of_lengths(base: Any) -> Any:
    """A recurrent layer that computes rows of other lengths than the longest one by one. onnx's
    layer treats them as equally long. It computes with the default activations alone, whatever the
    attributes say, so others are refused."""

    class OfLengths(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            kind = self.onnx_node.op_type
            for attribute in self.onnx_node.attribute:
                given = [text.decode().lower() for text in attribute.strings]
                ways = len(given) // len(_ACTIVATIONS[kind])
                if attribute.name == "activations" and given != _ACTIVATIONS[kind] * ways:
                    raise NotImplementedError(f"{kind} with activations of its own")
                if attribute.name in ("clip", "activation_alpha", "activation_beta"):
                    raise NotImplementedError(f"{kind} with {attribute.name}")
                if attribute.name == "input_forget" and attribute.i:
                    raise NotImplementedError(f"{kind} with {attribute.name}")

        def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
            by_rows = options.get("layout") or 0
            x, lengths = inputs[0], inputs[4] if len(inputs) > 4 else None
            steps = x.shape[1 if by_rows else 0]
            if lengths is None or (lengths == steps).all():
                return (*super()._run(*inputs, **options),)
            if (lengths < 1).any() or (lengths > steps).any():
                raise NotImplementedError(f"sequences of other lengths than 1 to {steps}")
            rows = []
            for row, length in enumerate(lengths.tolist()):
                only = x.take([row], axis=0 if by_rows else 1)
                given = [only.take(range(length), axis=1 if by_rows else 0), *inputs[1:4], None]
                first = 0 if by_rows else 1
                given += [
                    value.take([row], axis=first)
                    if value is not None and at < _LAST_STATE
                    else value
                    for at, value in enumerate(inputs[5:], 5)
                ]
                made, *states = super()._run(*given, **options)
                lacking = [(0, 0)] * made.ndim
                lacking[1 if by_rows else 0] = (0, steps - length)
                rows.append((np.pad(made, lacking), *states))
            axes = (0 if by_rows else 2, *[0 if by_rows else 1] * (len(rows[0]) - 1))
            return tuple(
                np.concatenate(parts, axis) if parts[0] is not None else None
                for parts, axis in zip(zip(*rows, strict=True), axes, strict=True)
            )

    OfLengths.__name__ = base.__name__.partition("_")[0]  # the evaluator finds it by this name
    return OfLengths


def _coercing(base: Any) -> Any:
    """A Softmax or similar operator that joins all axes from the given one, by default 1, before
    operator set 13."""

    class Coercing(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._first: int | None = None
            if opset_of(self) < _SOFTMAX_OF_ONE_AXIS:
                given = [
                    attribute.i
                    for attribute in self.onnx_node.attribute
                    if attribute.name == "axis"
                ]
                self._first, self.axis = (given or [1])[0], -1

        def _run(self, x: Any) -> tuple[Any, ...]:
            if self._first is None or not x.size:
                return (*super()._run(x),)
            rows = int(np.prod(x.shape[: self._first % x.ndim]))
            (result,) = super()._run(x.reshape(rows, -1))
            return (result.reshape(x.shape),)

    Coercing.__name__ = base.__name__  # the evaluator finds it by this name
    return Coercing


_CORRECTED = (
    *map(_of_lengths, (op_gru.GRU, op_lstm.LSTM, op_rnn.RNN_14)),
    *map(_coercing, (OpHardmax, LogSoftmax, OpSoftmax)),
    *CUMULATIONS,
    *LOSSES,
    *map(of_trees, (TreeEnsemble, TreeEnsembleClassifier, OpTreeEnsembleRegressor)),
    Attention,
    AveragePool,
    BatchNormalization,
    ConvTranspose,
    Equal,
    GatherElements,
    GlobalMaxPool,
    GridSample,
    LRN,
    LayerNormalization,
    LinearClassifier,
    LinearRegressor,
    Loop,
    LpNormalization,
    LpPool,
    MatMulInteger,
    MaxPool,
    Mean,
    NonMaxSuppression,
    Normalizer,
    OneHot,
    OneHotEncoder,
    Optional,
    Pad,
    QLinearMatMul,
    ReduceLogSumExp,
    RegexFullMatch,
    Resize,
    RoiAlign,
    STFT,
    SVMClassifier,
    Scaler,
    Scan,
    SequenceInsert,
    Softsign,
    SplitToSequence,
    StringConcat,
    StringNormalizer,
    StringSplit,
    TfIdfVectorizer,
    Trilu,
    Unique,
    Upsample,
)
