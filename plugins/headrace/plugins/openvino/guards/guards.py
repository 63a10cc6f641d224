"""Adds checks to a network that OpenVINO does not make while it runs. They check indices, tensors
without elements, integer divisors and lengths.

If a condition is known to fail before a run, the network is refused. For the other conditions the
network gets one more output, which holds its `conditions`. A request that does not meet one of them
fails. So the checks cover the caller's values and computed values. Conditions inside of bodies are
carried out of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

import numpy as np

from headrace.plugins.openvino.graph.empty_tensors import bodies
from headrace.plugins.openvino.graph.fusion import layer_of
from headrace.plugins.openvino.graph.loops import after_turns
from headrace.plugins.openvino.guards.conditions import conditions
from headrace.plugins.openvino.guards.terms import ALWAYS, EMPTY, is_constant
from headrace.plugins.openvino.guards.windows import sums_apart
from headrace.plugins.openvino.library import openvino, operations
from headrace.runtime.errors import InvalidArgument, InvalidModel
from headrace.runtime.network.values import Array, Value

NO_LAYERS: Final[Mapping[str, str]] = MappingProxyType({})
_PREFIX: Final = "headrace.guards:"
_STAMP: Final = b"headrace guards 37\n"
"""Exported networks start with it. Raise the number when networks get other guards or repairs than
before. Then no network that was exported without them is restored."""
_Told: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Guard:
    """
    Attributes:
        value: int64[n]; each element is 1 or more where a condition is met.
        told: for each element, the layer and what it does if the condition is not met.
    """

    value: openvino.Output
    told: _Told


class Guards:
    """The conditions of one compiled network.

    Args:
        index: index of the output that holds the conditions, among the compiled network's outputs.
        name: name of that output. It describes the conditions, so that an exported network keeps
            the description.
    """

    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self._told: list[list[str]] = json.loads(unquote(name.removeprefix(_PREFIX)))

    @classmethod
    def of(cls, model: openvino.CompiledModel) -> Guards | None:
        """The guards of a compiled network; None if it has none."""
        outputs = model.outputs
        names = outputs[-1].get_names() if outputs else ()
        name = next((each for each in names if each.startswith(_PREFIX)), None)
        return None if name is None else cls(len(outputs) - 1, name)

    def check(self, values: Array, inputs: Mapping[str, Value]) -> None:
        """
        Args:
            values: the values of the output.
            inputs: the request's inputs.

        Raises:
            InvalidArgument: a condition is not met.
        """
        if values.min() > 0:
            return
        layer, broken = self._told[int(values.argmin())]
        field, why = "inputs", ""
        if broken == EMPTY:
            for name, value in inputs.items():
                if getattr(value, "size", 1) == 0:
                    field, why = f"inputs[{name!r}]", f", and input {name!r} has none"
                    break
        raise InvalidArgument(
            f"layer {layer!r} {broken}{why}; send other values, or load the network on CPU",
            field=field,
        )


def add_guards(model: openvino.Model, layers: Mapping[str, str]) -> None:
    """Gives the model one more output, if it needs guards.

    Args:
        layers: the types of the layers by their names, as far as they are known.

    Raises:
        InvalidModel: a condition is never met.
    """
    guards = _guards(model, layers)
    if not guards:
        return
    result = operations.result(_joined(guards))
    told = [each for guard in guards for each in guard.told]
    result.output(0).set_names({_PREFIX + quote(json.dumps(told, separators=(",", ":")))})
    model.add_results([result])


def add_constant_guards(model: openvino.Model, layers: Mapping[str, str]) -> list[str]:
    """Gives a model without inputs one more output, if it needs guards. Such a model may have
    operations that only a run can compute.

    Returns: what the layer does for each element of the output that is less than 1.
    """
    guards = _guards(model, layers, in_run=True)
    if guards:
        model.add_results([operations.result(_joined(guards))])
    return [broken for guard in guards for _, broken in guard.told]


def stamped(native: bytes) -> bytes:
    """OpenVINO's export, with a mark that says which guards the network has."""
    return _STAMP + native


def unstamped(data: bytes) -> bytes:
    """OpenVINO's export, without the mark.

    Raises:
        InvalidArgument: the network may lack guards.
    """
    if not data.startswith(_STAMP):
        raise InvalidArgument(
            "it was exported by a version that checks requests differently; load the model again",
            field="blob",
        )
    return data[len(_STAMP) :]


def _guards(
    model: openvino.Model, layers: Mapping[str, str], *, in_run: bool = False
) -> list[_Guard]:
    """
    Args:
        in_run: a run computes the conditions on constants too, because only a run can compute them,
            or because the model is a branch, which may never be taken.
    """
    found: list[_Guard] = []
    apart = sums_apart(model)
    for operation in model.get_ordered_ops():
        layer = layer_of(operation.get_friendly_name())
        within = in_run or operation.get_type_name() == "If"
        inner = [_guards(body, NO_LAYERS, in_run=within) for body in bodies(operation)]
        if any(inner):
            found.append(_carried_out(operation, layer, inner))
        given = conditions(operation, layers.get(layer, ""))
        for node, broken in chain(given, apart.get(operation.get_name(), ())):
            count = node.get_output_shape(0)[0]
            if not count:  # it holds, because it has no elements
                continue
            guard = _Guard(node.output(0), ((layer, broken),) * count)
            if in_run or not is_constant(guard.value):
                found.append(guard)
            elif not _holds(guard.value):
                raise InvalidModel(f"the layer {broken}", field="model")
    return found


def _holds(condition: openvino.Output) -> bool:
    found = openvino.Tensor(openvino.Type.i64, condition.get_shape())
    return openvino.Model([condition], []).evaluate([found], []) and bool((found.data > 0).all())


def _joined(guards: list[_Guard]) -> openvino.Output:
    values = [guard.value for guard in guards]
    return values[0] if len(values) == 1 else operations.concat(values, 0).output(0)


def _carried_out(operation: openvino.Node, layer: str, inner: list[list[_Guard]]) -> _Guard:
    """A guard outside of an operation for the guards in its bodies."""
    told = tuple((layer, broken) for body in inner for guard in body for _, broken in guard.told)
    carry = _of_branches if operation.get_type_name() == "If" else _of_iterations
    return _Guard(carry(operation, inner), told)


def _of_branches(operation: openvino.Node, inner: list[list[_Guard]]) -> openvino.Output:
    """The guards of both branches. The guards of the branch that is not taken are met."""
    results = []
    for branch, body in enumerate(bodies(operation)):
        values = [
            guard.value if at == branch else _met(len(guard.told))
            for at, guards in enumerate(inner)
            for guard in guards
        ]
        results.append(operations.result(operations.concat(values, 0)))
        body.add_results([results[-1]])
    return operation.set_output(*results)


def _of_iterations(operation: openvino.Node, inner: list[list[_Guard]]) -> openvino.Output:
    """The least value of each guard over all iterations. They are met if there are none."""
    (guards,) = inner
    (body,) = bodies(operation)
    joined = _joined(guards)
    so_far = openvino.op.Parameter(openvino.Type.i64, joined.get_partial_shape())
    body.add_parameters([so_far])
    result = operations.result(operations.minimum(so_far, joined))
    body.add_results([result])
    start = _met(sum(len(guard.told) for guard in guards))
    operation.set_merged_input(so_far, start, result.output(0))
    return after_turns(operation, operation.get_iter_value(result.output(0), -1), start)


def _met(count: int) -> openvino.Output:
    return operations.constant(np.repeat(ALWAYS, count)).output(0)
