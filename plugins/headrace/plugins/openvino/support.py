"""Asks the backend which layers it runs.

OpenVINO's own `query_model` lists operations of its converted graph. It claims some that then do
not compile, and it cannot answer for a network that does not convert. So the whole network is
compiled on trial. If that fails, each of its layers is compiled alone, with its bodies. A layer
that is refused anyway is left out of the trial, because OpenVINO ends the process on some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Final

import onnx
import onnx_ir as ir

from headrace.plugins.openvino import limits
from headrace.plugins.openvino.backend import tensors
from headrace.runtime.errors import UnsupportedLayer
from headrace.runtime.intake.naming import bodies, walk
from headrace.runtime.network.constants import const_tensor
from headrace.runtime.system.graph_memory import watched
from headrace.runtime.transform import single_layer
from headrace.runtime.transform.trials import Trials

_RANKS: Final = (4, 2, 3, 1, 0)
_BODIES: Final = "OpenVINO gives memory of the results of branches and loops to other values too"
"""It does so where the sizes of a result are not known before a run, and then answers with memory
of other requests. What is known of a body's sizes decides it, so no layer with a body is run."""


def known_limits(model: ir.Model, capabilities: Collection[str] = ()) -> dict[ir.Node, str]:
    """The layers, also those in bodies, that a device with these OPTIMIZATION_CAPABILITIES computes
    wrongly, or whose values cannot be passed to it, each with the reason."""
    found: dict[ir.Node, str] = {}
    for node in walk(model.graph):
        reason = limits.reason(node, capabilities) or _unpassed(node)
        if any(bodies(node)):
            reason = _BODIES
        if reason is not None:
            found[node] = reason
    return found


def unsupported(reasons: Mapping[ir.Node, str]) -> list[UnsupportedLayer]:
    """The layers in the form in which an error lists them."""
    return [UnsupportedLayer(node.name or "", node.op_type, why) for node, why in reasons.items()]


class LayerSupport:
    """Tells for each node of one transformed network whether the backend runs it.

    Args:
        model: the transformed network, with its types inferred where possible.
        trials: the trials of single layers.
        whole: compiles the network, or the rest of it, with likely sizes. Returns the reason why it
            does not compile, or the reasons by layer. Returns None if it compiles.
        capabilities: the device's OPTIMIZATION_CAPABILITIES.
    """

    def __init__(
        self,
        model: ir.Model,
        trials: Trials,
        whole: Callable[[ir.Model], Mapping[str, str] | str | None],
        capabilities: Collection[str] = (),
    ) -> None:
        self._model = model
        self._trials = trials
        self._whole = whole
        self._capabilities = capabilities

    def __call__(self, node: ir.Node) -> str | None:
        """None if the backend runs the node. Otherwise the reason why it does not."""
        return self._reasons.get(node)

    @cached_property
    def _reasons(self) -> dict[ir.Node, str]:
        """The unsupported nodes. If each layer compiles alone but they do not compile together, the
        layer at fault is unknown. Then all nodes are unsupported, unless other sizes may do."""
        reasons = known_limits(self._model, self._capabilities)
        left = _without(self._model, reasons) if reasons else self._model
        whole = self._whole(left) if left is not None else ""
        if whole is None:
            return reasons
        if not isinstance(whole, str):
            named = {node.name: node for node in self._model.graph}
            reasons |= {named[name]: why for name, why in whole.items() if name in named}
            return reasons or dict.fromkeys(walk(self._model.graph), next(iter(whole.values())))
        for node in self._model.graph:  # a body goes with its layer, because it never runs alone
            if _holds_any(node, reasons) or all(map(_stays_within, node.outputs)):
                continue  # a constant is part of the trials of its readers
            if (reason := self._alone(node)) is not None:
                reasons[node] = reason
        if reasons or not all(
            value.shape and value.shape.is_static() for value in self._model.graph.inputs
        ):
            return reasons
        return dict.fromkeys(walk(self._model.graph), whole)

    def _alone(self, node: ir.Node) -> str | None:
        values = single_layer.outside_values(node)
        if all(value.type or single_layer.constant(value) is not None for value in values):
            return self._try(node)
        # Another layer keeps the network from compiling, and the types after it are unknown.
        known = [value.type for value in values if value.type is not None]
        guesses = [*known, ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.INT64)]
        reasons = [self._try(node, guess) for guess in dict.fromkeys(guesses)]
        return None if None in reasons else reasons[0]

    def _try(self, node: ir.Node, assumed: ir.TypeProtocol | None = None) -> str | None:
        model, reason = self._model, None
        for rank in _RANKS if assumed is not None else (None,):
            network = single_layer.network_of(
                node, model, model.ir_version, lambda _, version: version, assumed, sizes=True
            )
            if rank is not None:
                _give_rank(network, rank)
            reason = self._trials.reason(network)
            if reason is None:
                break
        return reason


def _holds_any(node: ir.Node, refused: Collection[ir.Node]) -> bool:
    inside = (each for _, body in bodies(node) for each in walk(body))
    return node in refused or any(each in refused for each in inside)


def _without(model: ir.Model, refused: Collection[ir.Node]) -> ir.Model | None:
    """A copy of `model` without the refused layers. The copy takes the results of these layers as
    inputs. None if no layer is left, or if the type or rank of one of these results is unknown."""
    rest = watched(model.clone())
    graph = rest.graph
    for node, copy in zip(list(model.graph), list(graph), strict=True):
        if not _holds_any(node, refused):
            continue
        for value in copy.outputs:
            read = bool(value.uses())
            if read and (value.type is None or value.shape is None):
                return None
            given = ir.Value(name=value.name, type=value.type, shape=value.shape)
            value.name = f"{value.name}/refused"
            graph.outputs[:] = [output for output in graph.outputs if output is not value]
            if read:
                value.replace_all_uses_with(given)
                graph.inputs.append(given)
        for place in range(len(copy.inputs)):
            copy.replace_input_with(place, None)  # otherwise the values keep it as their reader
        graph.remove(copy)
    if not graph.outputs:
        ends = (value for node in graph for value in node.outputs)
        graph.outputs.extend(value for value in ends if value.name and not value.uses())
    return rest if graph.outputs else None


def _give_rank(network: onnx.ModelProto, rank: int) -> None:
    """Gives the inputs of unknown rank this rank, because few layers compile without one."""
    for value in network.graph.input:
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type") and not tensor.HasField("shape"):
            tensor.shape.SetInParent()
            for _ in range(rank):
                tensor.shape.dim.add()


def _unpassed(node: ir.Node) -> str | None:
    """Why the node's values cannot be passed to and from OpenVINO. None if they can. Constants are
    not passed: they stay inside OpenVINO."""
    values = (value for value in (*node.inputs, *node.outputs) if value is not None)
    for value in values:
        if _stays_within(value):
            continue
        if isinstance(value.type, ir.SequenceType | ir.OptionalType):
            return f"{value.name!r} is a sequence or optional, and OpenVINO supports only tensors"
        if value.dtype is not None and value.dtype not in tensors.PASSED:
            return f"{value.name!r} has elements of {value.dtype.name.lower()}"
    return None


def _stays_within(value: ir.Value) -> bool:
    """Whether the value is a constant, which is not passed to OpenVINO or from it."""
    if value.is_graph_input() or value.is_graph_output():
        return False
    return const_tensor(value) is not None
