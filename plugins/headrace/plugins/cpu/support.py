"""Finds out which layers the backend runs: the backend loads a network of each single layer.

Tables of kernels are wrong both ways: of 1,459 single-node cases of onnx they claim 88 that fail
and refuse 126 that run. Loading a network of one node takes a fifth of a millisecond. Values that a
control-flow body captures become inputs of their types. Small constants stay constants, because
some kernels exist for constants alone. The network has the sizes that are known, because the
backend infers shapes when it loads a network, and refuses sizes that do not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property

import onnx_ir as ir
from onnx import defs

from headrace.plugins.cpu.backend import failures, session
from headrace.plugins.cpu.backend.compatibility import Compatibility
from headrace.plugins.cpu.backend.custom_ops import CUSTOM_OPS_LIBRARIES
from headrace.plugins.cpu.backend.session import Provider, SessionSettings
from headrace.plugins.cpu.guards import guard_layers
from headrace.runtime.errors import HeadraceError
from headrace.runtime.intake.naming import bodies, walk
from headrace.runtime.network.type_names import type_text
from headrace.runtime.transform import single_layer, trials

_ELSEWHERE = re.compile(r"assigned to the default CPU EP|node_provider_type\.empty\(\)")
"""What ONNX Runtime says if a provider leaves a layer to another one, or if none takes it."""
_INFERENCE = "InferenceError]"  # of types or of shapes
_NO_OPERATOR = re.compile(r"(\S+):(\w+)\(-?\d+\) is not a registered function/op")
_NO_KERNEL = re.compile(r"(?:Could not find an implementation|Failed to find kernel) for (\S+)")
_LIKELY = (ir.DataType.FLOAT, ir.DataType.STRING, ir.DataType.INT64)


class OnnxRuntimeTrials(trials.Trials):
    """Asks ONNX Runtime whether it runs single layers, and keeps its answers.

    Args:
        provider: the provider whose kernels must run the layers.
        capacity: the number of answers that are kept.
        check: why the provider does not run a layer that it has a kernel for; None if it does.
    """

    def __init__(
        self,
        provider: Provider,
        capacity: int = 4096,
        check: Callable[[bytes], str | None] = lambda _: None,
    ) -> None:
        def ask(data: bytes) -> str | None:
            try:
                session.open_bytes(data, provider, SessionSettings(strict=True))
            except HeadraceError as error:
                if _ELSEWHERE.search(error.message):
                    return f"{provider.name} has no kernel for it"
                return error.message.removeprefix(failures.REFUSED)
            return check(data)

        super().__init__(ask, capacity)


class LayerSupport:
    """Says whether the backend runs a node of one transformed network.

    Args:
        model: the transformed network, with types inferred as far as possible.
        refusal: why the device does not run a layer that the backend loads; None if it does.
        load: loads a model and drops it, or raises. It gets the whole network if the types that a
            layer takes are not known.
    """

    def __init__(
        self,
        model: ir.Model,
        compatibility: Compatibility,
        trials: OnnxRuntimeTrials,
        refusal: Callable[[ir.Node], str | None],
        load: Callable[[ir.Model], object],
    ) -> None:
        self._model = model
        self._compatibility = compatibility
        self._trials = trials
        self._refusal = refusal
        self._load = load

    def __call__(self, node: ir.Node) -> str | None:
        """None if the backend runs the node, or the reason why it does not."""
        for inner in _with_bodies(node):
            version = self._model.opset_imports.get(inner.domain, 1)
            reason = (
                self._compatibility.reason(inner, version)
                or self._refusal(inner)
                or guard_layers.certain(inner)
                or _behind_a_failure(inner)
            )
            if reason is not None:
                return reason
        values = single_layer.outside_values(node)
        unknown = [
            value for value in values if value.type is None and single_layer.constant(value) is None
        ]
        known = [value.type for value in values if value.type is not None]
        if not unknown:
            return self._try(node, known)
        # Another layer keeps the network from loading, and hides the types of the values after it.
        # A layer of ONNX is taken then: nothing is loaded before that other layer is gone. A custom
        # one is taken if it exists for any likely type.
        if self._loads_whole or defs.has(node.op_type, node.domain):
            return None
        reasons = [self._try(node, known, ir.TensorType(dtype)) for dtype in _LIKELY]
        return None if None in reasons else reasons[0]

    def _try(
        self,
        node: ir.Node,
        types: Sequence[ir.TypeProtocol],
        assumed: ir.TypeProtocol | None = None,
    ) -> str | None:
        versions = self._compatibility
        reason = self._trials.reason(
            single_layer.network_of(
                node, self._model, versions.ir_version, versions.version, assumed, sizes=True
            )
        )
        if reason is None:
            return None
        if _INFERENCE in reason and self._loads_whole:
            return None  # the backend refuses sizes that are only declared, and wrong
        unknown = _NO_OPERATOR.match(reason)
        if unknown is not None and not defs.has(unknown[2], unknown[1]):
            return (
                f"this server has no operator {unknown[2]} of the domain {unknown[1]!r}; name the "
                f"library of a custom operator as {CUSTOM_OPS_LIBRARIES.name} in the configuration "
                "file"
            )
        lacking = _NO_KERNEL.search(reason)
        if lacking is None:
            return reason
        return f"no kernel for {lacking[1]} on {', '.join(map(type_text, types)) or 'no inputs'}"

    @cached_property
    def _loads_whole(self) -> bool:
        for node in walk(self._model.graph):
            if self._refusal(node) or guard_layers.certain(node):
                return False  # loading some of these ends the process
        try:
            self._load(self._model)
        except HeadraceError:
            return False
        return True


def _behind_a_failure(node: ir.Node) -> str | None:
    """Why the node is never reached in a run, or must not be loaded, as its guards say."""
    made = (value.producer() for value in node.inputs if value is not None)
    reasons = (guard_layers.certain(producer) for producer in made if producer is not None)
    return next((reason for reason in reasons if reason is not None), None)


def _with_bodies(node: ir.Node) -> list[ir.Node]:
    return [node, *(inner for _, body in bodies(node) for inner in walk(body))]
