"""What onnx's evaluator gets wrong without a word. It is refused here, as narrowly as possible.

The errors were found by running onnx's backend cases and random layers through version 1.23. What
it gets wrong in one of these cases, or in a network of the zoo, has an operator of its own beside
this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from onnx import helper
from onnx.reference.ops._op import OpRunBinary, OpRunUnary

from headrace.runtime.network.reference.texts import are_texts
from headrace.runtime.network.reference.trees import refuse_other_than_trees

Attributes: TypeAlias = Mapping[str, Any]
Rules: TypeAlias = Mapping[str, Mapping[str, Callable[..., Any]]]

_ACTIVATIONS: Final = {
    "RNN": ["tanh"],
    "GRU": ["sigmoid", "tanh"],
    "LSTM": ["sigmoid", "tanh", "tanh"],
}
"""The default functions of each recurrent layer, in one direction."""

_MOST_UNIQUE_TEXTS: Final = 16_384
"""No other thread runs while NumPy sorts them."""


def _has_own_activations(node: onnx.NodeProto, given: Attributes) -> bool:
    known = _ACTIVATIONS[node.op_type]
    functions = [name.lower() for name in given.get("activations") or ()]
    return functions != known * (len(functions) // len(known))


_RECURRENT: Final[Mapping[str, Callable[..., Any]]] = {
    "activations of its own": _has_own_activations,
    "clip": lambda _, given: given.get("clip"),
    "activation_alpha or activation_beta": lambda _, given: (
        given.get("activation_alpha") or given.get("activation_beta")
    ),
    "input_forget": lambda _, given: given.get("input_forget"),
}

LAYERS: Final[Rules] = MappingProxyType(
    {
        "Attention": {
            "a softcap, and products without it": lambda node, given: (
                given.get("softcap")
                and not given.get("qk_matmul_output_mode")
                and len(node.output) > 3
            ),
        },
        "GRU": _RECURRENT,
        "LSTM": _RECURRENT,
        "LinearClassifier": {"no intercepts": lambda _, given: not given.get("intercepts")},
        "LinearRegressor": {"no intercepts": lambda _, given: not given.get("intercepts")},
        "NonMaxSuppression": {
            "no limit of boxes or of their overlap": lambda node, _: (
                not all([*node.input, "", ""][2:4])
            ),
        },
        "Normalizer": {"the norm MAX": lambda _, given: given.get("norm", "MAX") == "MAX"},
        "OneHotEncoder": {
            "the same category twice": lambda _, given: any(
                len({*categories}) < len(categories)
                for categories in (given.get("cats_int64s"), given.get("cats_strings"))
                if categories
            ),
        },
        "Optional": {"no value": lambda node, _: not any(node.input)},
        "RNN": _RECURRENT,
        "Resize": {
            "pytorch_half_pixel, and cubic or with antialias": lambda _, given: (
                given.get("coordinate_transformation_mode") == "pytorch_half_pixel"
                and (given.get("mode") == "cubic" or given.get("antialias"))
            ),
            "scales alone, as before operator set 11": lambda node, _: len(node.input) == 2,
        },
        "SVMClassifier": {"scores that differ from those of ONNX Runtime": lambda *_: True},
        "Upsample": {
            "scales as an attribute": lambda _, given: "scales" in given,
            "another mode than nearest": lambda _, given: given.get("mode", "nearest") != "nearest",
        },
        "TreeEnsemble": {"a post_transform": lambda _, given: given.get("post_transform")},
    }
)
"""For each operator, what a layer may not have: a function of its node and attributes says whether
it does."""


def _pads_for_an_output_shape(x: Any, w: Any, *_: Any, **options: Any) -> bool:
    """Whether a ConvTranspose would have to pad as its `output_shape` says. onnx's does not."""
    if options.get("output_shape") is None or options["auto_pad"].startswith("SAME"):
        return False
    count = x.ndim - 2
    strides, dilations = (options.get(name) or [1] * count for name in ("strides", "dilations"))
    made = np.multiply(strides, np.subtract(x.shape[2:], 1)) + 1
    made += np.multiply(dilations, np.subtract(w.shape[2:], 1))
    made += np.array((options.get("output_padding") or [0] * count)[:count])
    missing = made - np.array(options["output_shape"][-count:])
    return any(options.get("pads") or ()) or not np.isin(missing, (0, -1)).all()


def _is_continued(_q: Any, key: Any, _v: Any, mask: Any = None, *more: Any, **options: Any) -> bool:
    if options["opset"] >= 24 or mask is None:
        return False
    past = more[0].shape[2] if more and more[0] is not None else 0
    return bool(mask.shape[-1] != key.shape[-2] + past)


def _are_shorter(x: Any, *others: Any, **options: Any) -> bool:
    lengths = others[3] if len(others) > 3 else None
    steps = x.shape[1 if options.get("layout") else 0]
    return lengths is not None and bool((lengths != steps).any())


def _has_rows(a: Any, zero: Any) -> bool:
    return zero is not None and zero.ndim == 1 and zero.size > 1 and a.ndim == 2


def _is_fraction(values: Any) -> bool:
    return values.dtype.kind == "f" and bool((values != np.trunc(values)).any())


def _is_mixed(x: Any, *others: Any, training_mode: int = 0, **_: Any) -> bool:
    return bool(training_mode) and others[-1].dtype != x.dtype


def _is_unsorted(x: Any, axis: int | None = None, sorted: int = 1, **options: Any) -> bool:
    along = x.ndim > 1 if axis is None else axis % x.ndim != 0
    return not sorted and (along or options["outputs"] == 1)


_LENGTHS: Final[Mapping[str, Callable[..., Any]]] = {"sequences of other lengths": _are_shorter}
VALUES: Final[Rules] = MappingProxyType(
    {
        "Attention": {"a mask for a part of the keys, before operator set 24": _is_continued},
        "BatchNormalization": {"statistics of another type": _is_mixed},
        "ConvTranspose": {"an output_shape that asks for pads": _pads_for_an_output_shape},
        "GRU": _LENGTHS,
        "GridSample": {"integers": lambda x, *_, **_options: x.dtype.kind in "iu"},
        "LSTM": _LENGTHS,
        "LayerNormalization": {
            "statistics of narrow floats": lambda x, *_, outputs, **_options: (
                outputs > 1 and x.dtype.itemsize < 4
            ),
        },
        "LinearClassifier": {"features without a batch": lambda x, **_: x.ndim != 2},
        "LinearRegressor": {"features without a batch": lambda x, **_: x.ndim != 2},
        "MatMulInteger": {
            "a zero point for each row": lambda a, _, zero=None, *_more, **_options: _has_rows(
                a, zero
            ),
        },
        "Normalizer": {"features without a batch": lambda x, **_: x.ndim != 2},
        "OneHot": {
            "fractions": lambda indices, depth, *_, **_options: (
                _is_fraction(indices) or _is_fraction(np.asarray(depth))
            ),
        },
        "OneHotEncoder": {"fractions": lambda x, **_: x.dtype.kind == "f"},
        "Mean": {
            "inputs that are larger than the first": lambda *given, **_: (
                np.broadcast_shapes(*(x.shape for x in given)) != given[0].shape
            ),
        },
        "QLinearMatMul": {
            "a scale or zero point for each row": lambda a, scale, zero, *_, **_options: (
                _has_rows(a, scale) or _has_rows(a, zero)
            ),
        },
        "RNN": _LENGTHS,
        "ReduceLogSumExp": {
            "a single number": lambda x, *_, **_options: x.ndim == 0,
            "infinities": lambda x, *_, **_options: bool(np.isinf(x).any()),
        },
        "Scaler": {
            "integers": lambda x, **_: x.dtype.kind != "f",
            "features of more axes than a matrix has": lambda x, offset, scale, **_: (
                x.ndim > 2 and max(len(offset), len(scale)) > 1
            ),
        },
        "SequenceInsert": {
            "the end as a position": lambda sequence, _, position=None, **_options: (
                position is not None and int(position.reshape(-1)[0]) >= len(sequence)
            ),
        },
        "Softsign": {"a single number": lambda x, **_: x.ndim == 0},
        "Unique": {
            "unsorted parts": _is_unsorted,
            f"more than {_MOST_UNIQUE_TEXTS:,} texts": lambda x, **_: (
                are_texts(x) and x.size > _MOST_UNIQUE_TEXTS
            ),
        },
    }
)
"""For each operator, what the values of a request may not be: a function of the inputs and
attributes says whether they are."""


def _is_outside(x: Any, axis: Any, **_: Any) -> bool:
    return not -x.ndim <= np.asarray(axis).item() < x.ndim


def _has_no_class_each(scores: Any, target: Any, *_: Any, **_options: Any) -> bool:
    return bool(scores.ndim < 2 or target.shape != (*scores.shape[:1], *scores.shape[2:]))


def _has_no_weight_each(scores: Any, _: Any, weight: Any = None, **_options: Any) -> bool:
    return weight is not None and weight.shape != scores.shape[1:2]


def _does_not_add_up(x: Any, split: Any = None, axis: int = 0, **_: Any) -> bool:
    if split is None:
        return False
    if not np.ndim(split):
        return bool(split < 1)
    return bool((split < 0).any() or split.sum() != x.shape[axis])


_LOSS: Final[Mapping[str, Callable[..., Any]]] = {
    "a target without one class for each place": _has_no_class_each,
    "weights without one for each class": _has_no_weight_each,
}
INVALID: Final[Rules] = MappingProxyType(
    {
        "CumProd": {"an axis that is out of bounds": _is_outside},
        "CumSum": {"an axis that is out of bounds": _is_outside},
        "LpNormalization": {"another p than 1 and 2": lambda *_, p=2, **_options: p not in (1, 2)},
        "NegativeLogLikelihoodLoss": _LOSS,
        "SoftmaxCrossEntropyLoss": _LOSS,
        "SplitToSequence": {"lengths that do not add up": _does_not_add_up},
    }
)
"""As `VALUES`, but ONNX does not allow these."""


def refusing(operator: str, base: Any) -> Any:
    """The evaluator's class for an operator, which refuses what it would get wrong.

    Raises:
        NotImplementedError: when the layer is made, or for the values of a request.
        ValueError: ONNX does not allow the values, or the links of trees make none.
    """
    return _refusing(operator, base) if isinstance(base, type) else base


@cache
def _refusing(operator: str, base: Any) -> Any:
    # onnx's operators of one number and of two do not take the attributes of a function.
    takes_links = not issubclass(base, OpRunUnary | OpRunBinary)

    class Refusing(base):  # type: ignore[misc]
        def __init__(self, node: Any, parameters: Any, *more: Any) -> None:
            links = [attribute for attribute in node.attribute if attribute.ref_attr_name]
            if links and not takes_links:
                raise NotImplementedError(f"{operator} with an attribute of a function")
            self._is_checked = not links
            if self._is_checked and (operator in LAYERS or operator.startswith("TreeEnsemble")):
                _refuse_layer(node, dict(map(_attribute, node.attribute)))
            super().__init__(node, parameters, *more)
            self._more = {"opset": parameters["opsets"].get("", 0), "outputs": len(node.output)}

        def _run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
            if not self._is_checked:
                _refuse_layer(self.onnx_node, options)
            for rules, error in ((VALUES, NotImplementedError), (INVALID, ValueError)):
                for reason, is_wrong in rules.get(operator, {}).items():
                    if is_wrong(*inputs, **options, **self._more):
                        raise error(f"{operator} of {reason}")
            results: tuple[Any, ...] = super()._run(*inputs, **options)
            return results

    Refusing.__name__ = base.__name__  # the evaluator finds the operator's schema by this name
    return Refusing


def _refuse_layer(node: onnx.NodeProto, given: Attributes) -> None:
    if node.op_type.startswith("TreeEnsemble"):
        refuse_other_than_trees(given)
    for reason, is_wrong in LAYERS.get(node.op_type, {}).items():
        if is_wrong(node, given):
            raise NotImplementedError(f"{node.op_type} with {reason}")


def _attribute(attribute: onnx.AttributeProto) -> tuple[str, Any]:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return attribute.name, value.decode()
    is_text = attribute.type == onnx.AttributeProto.STRINGS
    return attribute.name, [text.decode() for text in value] if is_text else value
