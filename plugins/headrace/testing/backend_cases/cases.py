"""The cases of the onnx package: code makes some for each operator, others are small models."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnx.numpy_helper
from onnx.backend.test.case import node as node_cases
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

_KINDS = ("simple", "pytorch-converted", "pytorch-operator", "real")
_DATA = Path(onnx.backend.test.__file__).parent / "data"

RANDOM_OPERATORS = (
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
"""Operators whose numbers ONNX leaves to the backend; of Dropout, where it trains."""

INEXACT: Mapping[str, float] = MappingProxyType(
    {
        "test_attention_4d_causal_fp16": 5e-4,
        "test_attention_4d_fp16": 5e-4,
        "test_dft_inverse": 2e-7,
        "test_dft_inverse_opset19": 2e-7,
    }
)
"""Cases whose expected outputs are off by as much as they allow, and by how much. Those of DFT were
computed in complex64, and have 1.9e-7 where the exact result is 0 and 1e-7 is allowed. Those of
Attention were computed step by step in float16."""


@dataclass(frozen=True, slots=True, eq=False)
class BackendCase:
    """A model with inputs, and outputs that ONNX says are right.

    Attributes:
        kind: ``node``, or the kind of a model: simple, pytorch-converted, pytorch-operator, real.
        operator: the operator that a node case tests, with its domain if that is not ONNX's own;
            empty for models.
        model: a serialised ModelProto.
        data_sets: inputs by name and outputs by name: arrays, lists for sequences, None.
        rtol, atol: relative and absolute error that the case allows, as NumPy counts them.
        random: whether its numbers come from a generator that ONNX does not specify.
    """

    name: str
    kind: str
    operator: str
    model: bytes
    data_sets: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = field(repr=False)
    rtol: float
    atol: float
    random: bool = False

    def __str__(self) -> str:
        return self.name


def collect(patterns: Sequence[str] = ()) -> list[BackendCase]:
    """All cases, by name, or those whose name matches one of the shell patterns.

    Takes some seconds the first time: the node cases compute their outputs when they are collected.
    """

    def wanted(case: TestCase) -> bool:
        return not patterns or any(fnmatchcase(case.name, pattern) for pattern in patterns)

    cases = list(_node_cases(wanted))
    for kind in _KINDS:
        cases += (_model_case(each) for each in load_model_tests(kind=kind) if wanted(each))
    return sorted(cases, key=lambda case: case.name)


def _node_cases(wanted: Any) -> Iterator[BackendCase]:
    operator, base = "", "\0"
    for case in node_tests():
        assert case.model is not None
        if not case.name.startswith(f"{base}_expanded"):  # otherwise: the previous operator
            (node,) = case.model.graph.node
            operator, base = _qualified(node), case.name
        if wanted(case):
            yield _case(case, operator, case.model, case.data_sets)


@cache
def node_tests() -> tuple[TestCase, ...]:
    """What onnx's own modules make for each operator.

    They make it when they are imported, and refuse to make a name twice. So whatever one that was
    broken off has left, such as by a test's time-out, is forgotten before they are imported again.
    """
    for name in [name for name in sys.modules if name.startswith(f"{node_cases.__name__}.")]:
        del sys.modules[name]
    node_cases._NodeTestCases.clear()
    node_cases._existing_names.clear()
    with warnings.catch_warnings(action="ignore"):  # overflows, on purpose
        return tuple(node_cases.collect_testcases(None))


def _case(case: TestCase, operator: str, model: onnx.ModelProto, data_sets: Any) -> BackendCase:
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [port.name for port in model.graph.input if port.name not in initializers]
    outputs = [port.name for port in model.graph.output]
    return BackendCase(
        case.name,
        case.kind,
        operator,
        model.SerializeToString(),
        tuple(
            (
                dict(zip(inputs, map(_value, given), strict=False)),
                dict(zip(outputs, map(_value, expected), strict=True)),
            )
            for given, expected in data_sets
        ),
        case.rtol,
        max(case.atol, INEXACT.get(case.name, 0.0)),
        any(map(_is_random, model.graph.node)),
    )


def _model_case(case: TestCase) -> BackendCase:
    if case.model_dir is None:
        assert case.url is not None
        path = _DATA / case.url.removeprefix("onnx/backend/test/data/")
        model = onnx.load(path)
        return _case(case, "", model, [_made_up_data(model, path)])
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    graph = model.graph
    data_sets = [
        (_stored(data_set, "input", graph.input), _stored(data_set, "output", graph.output))
        for data_set in sorted(folder.glob("test_data_set_*"))
    ]
    return _case(case, "", model, data_sets)


def _stored(folder: Path, prefix: str, ports: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    count = len(list(folder.glob(f"{prefix}_*.pb")))
    return [
        read_value((folder / f"{prefix}_{index}.pb").read_bytes(), ports[index].type)
        for index in range(count)
    ]


def read_value(data: bytes, declared: onnx.TypeProto) -> Any:
    """A stored input or output of the declared type, as the runtime takes it."""
    if declared.HasField("sequence_type"):
        return _value(onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
    if declared.HasField("optional_type"):
        return _value(onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
    return _value(onnx.TensorProto.FromString(data))


def _made_up_data(model: onnx.ModelProto, path: Path) -> tuple[list[Any], list[Any]]:
    """The inputs that onnx's own runner uses for these models: n elements in steps of 1/n."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = {}
    for port in model.graph.input:
        if port.name not in initializers:
            shape = [dim.dim_value or 1 for dim in port.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            inputs[port.name] = (np.arange(count).reshape(shape) / count).astype(np.float32)
    stored = [
        path.with_name(f"{path.stem}_output_{at}.pb") for at in range(len(model.graph.output))
    ]
    if all(each.exists() for each in stored):
        outputs: list[Any] = [onnx.TensorProto.FromString(each.read_bytes()) for each in stored]
    else:
        outputs = [*ReferenceEvaluator(model).run(None, inputs)]
    return list(inputs.values()), outputs


def _value(value: Any) -> Any:
    """Protocol messages, scalars and fixed-width texts as the runtime takes them."""
    if value is None:
        return None
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    elif isinstance(value, list | tuple):
        return [_value(item) for item in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _is_random(node: onnx.NodeProto) -> bool:
    # Whether a Dropout trains is often an input; without it there are no random numbers.
    if node.op_type == "Dropout":
        return len(node.input) > 2 and bool(node.input[2])
    return node.op_type in RANDOM_OPERATORS


def _qualified(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)
