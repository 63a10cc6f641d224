"""Variants with tensors of wrong ranks and lengths: every input of every case, one after another.

Each input takes the forms of `forms`, while the other inputs stay as the case has them. The network
learns the form in one of five ways: from the request, where nothing is declared, where ranks are
declared, where equal sizes are declared by the same symbol, or inside a body, and from a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper

from headrace.testing.backend_cases.cases import BackendCase
from tools.fuzz.devices.values import resized
from tools.fuzz.devices.variant import Feed, Variant

FUSION = "fusion"
"""The kind of cases of several nodes that the sweep takes."""
_TRUTH = "headrace_go"
_BODIES_FROM_OPSET = 11  # an If of an earlier one wants the shapes of its outputs


def forms(value: Any) -> dict[str, Any]:
    """The value in other ranks and lengths, each by its name; the value itself comes first.

    Args:
        value: an array or a sequence. A sequence is also emptied, and else its first element
            changes.
    """
    if isinstance(value, list):
        inner = forms(value[0]) if value else {}
        changed = {f"its first {name}": [each, *value[1:]] for name, each in inner.items()}
        return {"as it is": value, "without elements": [], **changed}
    if not isinstance(value, np.ndarray):
        return {"as it is": value}
    found = {
        "as it is": value,
        "a scalar": resized(value.ravel(), (1,)).reshape(()),
        "without elements": resized(value.ravel(), (0,)),
        "flat": value.ravel(),
        "with an axis before": value[np.newaxis],
        "with an axis behind": value[..., np.newaxis],
    }
    if value.ndim:
        row = resized(value, (1, *value.shape[1:]))
        found["without its first axis"] = row.reshape(value.shape[1:])
    for axis in sorted({0, value.ndim - 1}) if value.ndim else ():
        for size in (value.shape[axis] + 1, value.shape[axis] - 1, 0):
            if size >= 0:
                shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
                found[f"with {size} along axis {axis}"] = resized(value, shape)
    shapes: dict[tuple[int, ...], str] = {}
    for name, each in found.items():
        shapes.setdefault(each.shape, name)
    return {name: found[name] for name in shapes.values()}


@dataclass(frozen=True, slots=True)
class _Plan:
    case: BackendCase
    name: str
    way: str
    forms: tuple[str, ...]


class RankSweep:
    """A finite series of variants, the same in each process. Not random.

    Args:
        cases: those of a single node and of fusions are taken, and of those that differ in values
            and sizes alone the first. Those with random numbers are left out.
    """

    def __init__(self, cases: Sequence[BackendCase]) -> None:
        kinds: dict[bytes, BackendCase] = {}
        for case in cases:
            if case.kind in ("node", FUSION) and not case.random and case.data_sets:
                kinds.setdefault(_kind(case), case)
        self._plans = [plan for case in kinds.values() for plan in _plans(case)]
        self.operators = sorted({plan.case.operator for plan in self._plans})

    def __len__(self) -> int:
        return len(self._plans)

    def variant(self, number: int) -> Variant:
        """Variant `number`, counted from 0.

        Raises:
            IndexError: there is none.
        """
        plan = self._plans[number]
        case = plan.case
        model = onnx.ModelProto.FromString(case.model)
        given = dict(case.data_sets[0][0])
        known = forms(given[plan.name])
        feeds: list[dict[str, Any]] = [{**given, plan.name: known[form]} for form in plan.forms]
        declared = {} if plan.way not in ("ranks", "symbols") else _arrays(feeds[0])
        _undeclare(model, declared, alike=plan.way == "symbols")
        if plan.way == "constant":
            tensor = onnx.numpy_helper.from_array(feeds[0].pop(plan.name), plan.name)
            model.graph.initializer.append(tensor)
            (port,) = (each for each in model.graph.input if each.name == plan.name)
            model.graph.input.remove(port)
        if plan.way == "body":
            _enclose(model)
            feeds = [{**feed, _TRUTH: np.array(True)} for feed in feeds]
        done = (f"{plan.name} {' or '.join(plan.forms)}", plan.way)
        data = model.SerializeToString()
        return Variant(f"ranks:{number}", case.name, case.operator, data, tuple(feeds), done)


def _kind(case: BackendCase) -> bytes:
    """The same for cases that differ in values and sizes alone."""
    model = onnx.ModelProto.FromString(case.model)
    model.graph.name = ""
    _undeclare(model, _arrays(case.data_sets[0][0]))
    return model.SerializeToString()


def _plans(case: BackendCase) -> Iterator[_Plan]:
    model = onnx.ModelProto.FromString(case.model)
    single = len(model.graph.node) == 1
    if not single and case.kind != FUSION:
        return
    nested = not single or any(each.g.node for each in model.graph.node[0].attribute)
    versions = (each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    opset = max(versions, default=0)
    for name, value in case.data_sets[0][0].items():
        known = forms(value)
        yield _Plan(case, name, "nothing", (*known,))
        if opset >= _BODIES_FROM_OPSET and not nested:
            yield _Plan(case, name, "body", (*known,))
        if isinstance(value, np.ndarray):
            ranks: dict[int, tuple[str, ...]] = {}
            for form, each in known.items():
                ranks[each.ndim] = (*ranks.get(each.ndim, ()), form)
            yield from (_Plan(case, name, "ranks", each) for each in ranks.values())
            yield _Plan(case, name, "symbols", ranks[value.ndim])
            yield from (_Plan(case, name, "constant", (form,)) for form in known)


def _arrays(feed: Feed) -> dict[str, Any]:
    return {name: value for name, value in feed.items() if isinstance(value, np.ndarray)}


def _undeclare(model: onnx.ModelProto, declared: dict[str, Any], alike: bool = False) -> None:
    """Takes all shapes away, except that the inputs of `declared` have as many free dimensions. If
    `alike`, those of the same size have the same symbol."""
    graph = model.graph
    del graph.value_info[:]
    for port in (*graph.input, *graph.output):
        if port.type.HasField("tensor_type"):
            tensor = port.type.tensor_type
            tensor.ClearField("shape")
            if port.name in declared:
                tensor.shape.SetInParent()
                for axis, size in enumerate(declared[port.name].shape):
                    symbol = f"size_{size}" if alike else f"{port.name}_{axis}"
                    tensor.shape.dim.add().dim_param = symbol


def _enclose(model: onnx.ModelProto) -> None:
    """Puts the node into both bodies of an If, which capture its inputs."""
    graph = model.graph
    (node,) = graph.node
    bodies = []
    for which in ("then", "else"):
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        names = {name: f"{which}_{name}" for name in node.output if name}
        inner.output[:] = [names.get(name, "") for name in node.output]
        outputs = []
        for port in graph.output:
            output = onnx.ValueInfoProto()
            output.CopyFrom(port)
            output.name = names[port.name]
            outputs.append(output)
        bodies.append(helper.make_graph([inner], which, [], outputs))
    results = [port.name for port in graph.output]
    chosen = helper.make_node("If", [_TRUTH], results)
    for name, body in zip(("then_branch", "else_branch"), bodies, strict=True):
        chosen.attribute.append(helper.make_attribute(name, body))
    node.CopyFrom(chosen)
    graph.input.append(helper.make_tensor_value_info(_TRUTH, onnx.TensorProto.BOOL, []))
