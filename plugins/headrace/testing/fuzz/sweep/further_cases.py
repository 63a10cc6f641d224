"""Cases of operators that ONNX Runtime has and ONNX's own cases lack: for the sweep of ranks alone.

They have no expected outputs. Operators of the domain ``com.microsoft`` have no reference either:
only ends of the process, foreign memory and internal errors show there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx
from onnx import helper

from headrace.testing.backend_cases.cases import BackendCase
from headrace.testing.fuzz.sweep.contributed import CONTRIBUTED
from headrace.testing.fuzz.sweep.operators import OPERATORS

_LINE = re.compile(r"\((.*?)\) => \((.*?)\)\s+(.*)", re.DOTALL)
_PORT = re.compile(r"(\w+)(?:\[([\d,]*)\])? (\w+)")
_OPSETS = {"": 17, "ai.onnx.ml": 3, "com.microsoft": 1, "com.microsoft.nchwc": 1}


def further_cases(patterns: Sequence[str] = ()) -> list[BackendCase]:
    """A case for each line of the two tables, or those whose name matches one of the patterns."""
    table = enumerate((*OPERATORS, *CONTRIBUTED))
    found = [_case(number, text, values) for number, (text, values) in table]
    wanted = (lambda name: any(fnmatchcase(name, each) for each in patterns)) if patterns else bool
    return [case for case in found if wanted(case.name)]


def _case(number: int, text: str, values: Mapping[str, Any]) -> BackendCase:
    found = _LINE.fullmatch(text)
    assert found is not None
    ports, results, call = found.groups()
    inputs = _PORT.findall(ports)
    outputs = [each.split()[-1] for each in results.split(",")]
    given = ", ".join(name for _, _, name in inputs)
    operator = call.partition("<")[0]
    domain = operator.rpartition(".")[0]
    opsets = ", ".join(f'"{each}": {version}' for each, version in _OPSETS.items())
    model = onnx.parser.parse_model(
        f"<ir_version: 8, opset_import: [{opsets}]>\n"
        f"g ({ports}) => ({results}) {{ {', '.join(outputs)} = {call}({given}) }}"
    )
    if not domain and operator not in ("GlobalLpPool", "MaxRoiPool"):
        model.opset_import[0].version = 9  # ONNX dropped them
    feed = {name: _values(kind, sizes, values.get(name)) for kind, sizes, name in inputs}
    name = f"further_{number}_{operator}"
    data = model.SerializeToString()
    return BackendCase(name, "node", operator, data, ((feed, {}),), 1e-3, 1e-7)


def _values(kind: str, sizes: str, value: Any) -> Any:
    shape = tuple(int(each) for each in sizes.split(",") if each)
    if kind == "string":
        return np.full(shape, "a b", object)
    element = onnx.TensorProto.DataType.Value(kind.upper())
    dtype = helper.tensor_dtype_to_np_dtype(element)
    if value is None and kind == "float":
        count = int(np.prod(shape))
        return (np.arange(1, count + 1) / (count + 1)).reshape(shape).astype(dtype)
    return np.full(shape, 1 if value is None else value, dtype)
