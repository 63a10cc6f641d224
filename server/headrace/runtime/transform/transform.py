"""Transforms the network as it was loaded into the network as the device gets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from headrace.runtime.errors import Internal
from headrace.runtime.intake import naming
from headrace.runtime.intake.provenance import Transformation, origins, stamp, tracked
from headrace.runtime.network.network import Network
from headrace.runtime.network.type_inference import infer_types
from headrace.runtime.system.interruption import check
from headrace.runtime.transform.options import InputOptions, OutputOptions
from headrace.runtime.transform.passes import simplify
from headrace.runtime.transform.precision import to_float32
from headrace.runtime.transform.preprocessing import add_postprocessing, add_preprocessing

if TYPE_CHECKING:
    from onnxscript.rewriter.pattern import RewriteRuleClassBase

__all__ = ["Transformation", "origins", "rewriting", "transform_network"]


def transform_network(
    network: Network,
    *,
    preprocess: tuple[Mapping[str, InputOptions], Mapping[str, OutputOptions]] = ({}, {}),
    common: bool = True,
    fp16_to_fp32: bool = False,
    device_passes: Sequence[Transformation] = (),
) -> Network:
    """A transformed clone of `network`. Its nodes know which layers they stand for.

    Args:
        preprocess: options by input and by output. They become nodes at the network's ends.
        common: runs the transformations that suit every device, after `fp16_to_fp32`.
        fp16_to_fp32: computes in float32 what the network computes in float16.
        device_passes: the device's own transformations. They run last, in order.

    Raises:
        InvalidArgument: an option does not fit the network. The error's field names the option.
    """
    model = network.clone().model
    for node in naming.walk(model.graph):
        stamp(node, [node.name or ""])
    inputs, outputs = preprocess
    infer_types(model)
    add_preprocessing(model, inputs)
    add_postprocessing(model, outputs)
    notes: tuple[str, ...] = ()
    if fp16_to_fp32:
        converted = to_float32(model)
        model = converted.model
        if converted.reason:
            notes = (f"float16 layers stay, which the device lacks: {converted.reason}",)
        elif converted.computes:
            notes = ("float16 layers are computed in float32, because the device lacks float16",)
    ports = _port_names(model)
    tracked(model, *((simplify,) if common else ()), *device_passes)
    _restore_outputs(model, ports)
    infer_types(model)
    naming.name_layers(model.graph)
    return Network(model, notes=notes)


def _port_names(model: ir.Model) -> tuple[list[str | None], list[str | None]]:
    graph = model.graph
    return [value.name for value in graph.inputs], [value.name for value in graph.outputs]


def _restore_outputs(model: ir.Model, wanted: tuple[list[str | None], list[str | None]]) -> None:
    """Restores the names of outputs that a device's transformation replaced by other values.

    Raises:
        Internal: a transformation removed inputs or outputs or mixed them up.
    """
    outputs = model.graph.outputs
    inputs, names = wanted
    changed = [value for value, name in zip(outputs, names, strict=False) if value.name != name]
    given = [value for value in changed if value.producer() is None]
    if _port_names(model)[0] != inputs or len(set(outputs)) != len(names) or given:
        raise Internal("a device's transformation changed the network's inputs or outputs")
    if not changed:
        return
    fresh = naming.value_names(model)
    ours = set(outputs)
    for node in naming.walk(model.graph):
        for value in node.outputs:
            if value.name in names and value not in ours:
                value.name = fresh.fresh(f"{value.name}/own")
    for value in changed:
        value.name = fresh.fresh(f"{value.name}/output")
    for value, name in zip(outputs, names, strict=True):
        value.name = name


def rewriting(*rules: type[RewriteRuleClassBase]) -> Transformation:
    """A transformation that applies onnxscript rewrite rules wherever they match.

    A rule is a class with a `pattern`, a `rewrite` and, if it needs further conditions, a `check`:
    https://microsoft.github.io/onnxscript/tutorial/rewriter/rewrite_patterns.html
    """

    def rewrite(model: ir.Model) -> bool:
        # Importing it takes a fifth of a server's start, and few devices have rules.
        from onnxscript.rewriter.pattern import RewriteRuleSet

        # Make the rules again each time. A rule keeps the graph that it was last applied to. Two
        # threads would mix it up, and its weights would stay after their network is gone.
        made = [rule.rule() for rule in rules]  # type: ignore[no-untyped-call]
        for rule in made:
            rule.try_rewrite = _heeding(rule.try_rewrite)
        try:
            return RewriteRuleSet(made).apply_to_model(model) > 0
        finally:
            for rule in made:
                del rule.try_rewrite  # the rule and its method would keep each other and the graph

    return rewrite


def _heeding(try_rewrite: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which ends the work at its next layer if nobody wants the result any more."""

    def attempt(*arguments: Any, **named: Any) -> Any:
        check()
        return try_rewrite(*arguments, **named)

    return attempt
