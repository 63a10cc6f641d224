"""Cases of operators that ONNX Runtime has and ONNX's own cases lack, and of layers that it fuses:
for the sweep of ranks alone. The tables beside this module hold them.

They have no expected outputs. Operators of the domain ``com.microsoft`` have no reference either:
only ends of the process, foreign memory and internal errors show there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from headrace.testing.backend_cases.cases import BackendCase
from tools.fuzz.devices.sweep.ranks import FUSION

_TABLES = Path(__file__).parent
_LINE = re.compile(r"\((.*?)\) => \((.*?)\)\s+(.*)", re.DOTALL)
_NETWORK = re.compile(
    r"\((.*?)\)\s+(?:=> \((.*?)\)\s+)?(?:<(.*?)>\s+)?(\{.*\})(?: @(\d+))?", re.DOTALL
)
_PORT = re.compile(r"(\w+)(?:\[([\d,]*)\])? (\w+)(?: = ([^,]*))?")
_OPSETS = {"": 17, "ai.onnx.ml": 3, "com.microsoft": 1, "com.microsoft.nchwc": 1}


def further_cases(patterns: Sequence[str] = ()) -> list[BackendCase]:
    """A case for each line of the tables, or those whose name matches one of the patterns."""
    single = [line for name in ("operators", "contributed") for line in _table(name)]
    found = [_case(number, line) for number, line in enumerate(single)]
    found += [fusion_case(number, line) for number, line in enumerate(_table("fusions"))]
    wanted = (lambda name: any(fnmatchcase(name, each) for each in patterns)) if patterns else bool
    return [case for case in found if wanted(case.name)]


def lines_of(path: Path) -> list[str]:
    """The lines of a table without comments. A line goes on in the next one if that begins with a
    space."""
    lines = re.split(r"\n(?! )", path.read_text(encoding="utf-8").strip())
    return [" ".join(line.split()) for line in lines if not line.startswith("#")]


def _table(name: str) -> list[str]:
    return lines_of(_TABLES / f"{name}.txt")


def _case(number: int, line: str) -> BackendCase:
    found = _LINE.fullmatch(line)
    assert found is not None, line
    ports, results, call = found.groups()
    inputs = _PORT.findall(ports)
    outputs = [each.split()[-1] for each in results.split(",")]
    given = ", ".join(name for _, _, name, _ in inputs)
    operator = call.partition("<")[0]
    domain = operator.rpartition(".")[0]
    layers = f"{{ {', '.join(outputs)} = {call}({given}) }}"
    model = _parsed(_without_values(ports), results, layers)
    if not domain and operator not in ("GlobalLpPool", "MaxRoiPool"):
        model.opset_import[0].version = 9  # ONNX dropped them
    name = f"further_{number}_{operator}"
    data = model.SerializeToString()
    return BackendCase(name, "node", operator, data, ((_given(ports), {}),), 1e-3, 1e-7)


def fusion_case(number: int, line: str) -> BackendCase:
    """The case of a line as in ``fusions.txt``."""
    found = _NETWORK.fullmatch(line)
    assert found is not None, line
    ports, results, weights, layers, opset = found.groups(default="")
    model = _parsed(_without_values(ports), results or "float y", layers)
    model.opset_import[0].version = int(opset or _OPSETS[""])
    for name, value in _given(weights).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    feed = _given(ports)
    operator = "+".join(node.op_type for node in model.graph.node)
    data = model.SerializeToString()
    name = f"fusion_{number}_{operator}"
    return BackendCase(name, FUSION, operator, data, ((feed, {}),), 1e-3, 1e-7)


def _given(ports: str) -> dict[str, Any]:
    return {
        name: _values(kind, sizes, value.split() if value else None)
        for kind, sizes, name, value in _PORT.findall(ports)
    }


def _without_values(ports: str) -> str:
    return re.sub(r" = [^,]*", "", ports)


def _parsed(ports: str, results: str, layers: str) -> onnx.ModelProto:
    opsets = ", ".join(f'"{each}": {version}' for each, version in _OPSETS.items())
    return onnx.parser.parse_model(
        f"<ir_version: 8, opset_import: [{opsets}]>\ng ({ports}) => ({results}) {layers}"
    )


def _values(kind: str, sizes: str, value: Any) -> Any:
    shape = tuple(int(each) for each in sizes.split(",") if each)
    if kind == "string":
        return np.full(shape, "a b", object)
    element = onnx.TensorProto.DataType.Value(kind.upper())
    dtype = helper.tensor_dtype_to_np_dtype(element)
    if value is None and kind in ("float", "int8", "uint8"):
        count = int(np.prod(shape))
        series = np.arange(1, count + 1) / (count + 1) if kind == "float" else np.arange(count) % 9
        return series.reshape(shape).astype(dtype)
    numbers = np.array([1 if value is None else value], dtype)
    return numbers.reshape(shape) if numbers.size > 1 else np.full(shape, numbers.ravel()[0])
