"""A pipeline as a network: one layer a step, whose inputs and outputs are the pipeline's tensors.

So all that a server does with networks, it does with pipelines. The layers are of the domain
``headrace.pipeline``. A layer's operator is the network that the step runs, and two attributes say
the rest: ``step``, as JSON, and ``model``, the bytes of a model of the step's own. Constants are
initialisers. The graph has the name of the file that describes the pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake.check import PIPELINE_DOMAIN as DOMAIN
from headrace.runtime.intake.limits import Limits
from headrace.runtime.intake.onnx_bytes import serialize
from headrace.runtime.network.constants import tensor_of
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Array
from headrace.runtime.pipelines.description import (
    FILE,
    PipelineDescription,
    PipelineStep,
    StepConstant,
)
from headrace.runtime.pipelines.order import PipelinePlan, plan_of
from headrace.runtime.system.buffers import Buffer, joined

_IR_VERSION: Final = 10
_STEP: Final = "step"
_MODEL: Final = "model"
_MAX_FILE: Final = 256


def network_of(
    description: PipelineDescription, models: Mapping[str, Buffer], limits: Limits
) -> Network:
    """The network of a pipeline.

    Args:
        models: the bytes of the models that the steps name, by file.
        limits: bounds on the whole.

    Raises:
        InvalidArgument: as `plan_of`.
        InvalidModel: the whole breaks a limit, or a model is missing.
    """
    plan = plan_of(description)
    values: dict[str, ir.Value] = {name: ir.Value(name=name) for name in plan.inputs}
    initializers: list[ir.Value] = []
    nodes = []
    for step in plan.steps:
        given: list[ir.Value] = []
        for name, each in step.inputs.items():
            if isinstance(each, StepConstant):
                value = _initializer(f"{step.name}/{name}", each.array)
                initializers.append(value)
            else:
                value = values[each]
            given.append(value)
        if step.when:
            given.append(values[step.when])
        made = [ir.Value(name=name) for name in step.outputs]
        values.update((value.name or "", value) for value in made)
        attributes = [ir.AttrString(_STEP, json.dumps(_facts(step)))]
        if step.model:
            if step.model not in models:
                raise InvalidModel(f"the file {step.model!r} is missing", field=step.model)
            data = np.frombuffer(models[step.model], np.uint8)
            attributes.append(ir.AttrTensor(_MODEL, ir.Tensor(data)))
        nodes.append(
            ir.Node(
                DOMAIN,
                step.network or PurePath(step.model).stem,
                given,
                attributes,
                outputs=made,
                name=step.name,
            )
        )
    graph = ir.Graph(
        [values[name] for name in plan.inputs],
        [values[name] for name in plan.outputs],
        nodes=nodes,
        initializers=initializers,
        opset_imports={DOMAIN: 1},
        name=description.file,
    )
    model = ir.Model(graph, ir_version=_IR_VERSION)
    # Read as any other model: within the limits, with its weights in a file.
    return Network.from_bytes(joined(serialize(model)), limits, spooled=True)


def is_pipeline(network: Network) -> bool:
    """Whether all layers are steps."""
    nodes = [*network.model.graph]
    return bool(nodes) and all(node.domain == DOMAIN for node in nodes)


def plan_in(network: Network) -> tuple[PipelinePlan, dict[str, Buffer]]:
    """The plan of the pipeline that a network is, and the bytes of its steps' own models, by step.

    Raises:
        InvalidModel: the network is not a pipeline.
        InvalidArgument: as `plan_of`.
    """
    if not is_pipeline(network):
        raise InvalidModel(
            "the model is not a pipeline; a pipeline is described by pipeline.toml", field="model"
        )
    graph = network.model.graph
    models: dict[str, Buffer] = {}
    steps = []
    for node in graph:
        try:
            steps.append(_step(node))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"step {node.name!r} cannot be read"
            raise InvalidModel(message, field="model") from error
        if _MODEL in node.attributes:
            tensor = tensor_of(node.attributes[_MODEL])
            if tensor is None or tensor.dtype != ir.DataType.UINT8:
                raise InvalidModel(f"step {node.name!r} has no model", field="model")
            models[node.name or ""] = tensor.numpy().data
    description = PipelineDescription(
        tuple(steps),
        {value.name or "": value.name or "" for value in graph.outputs},
        tuple(value.name or "" for value in graph.inputs if value.name not in graph.initializers),
        (graph.name or FILE)[:_MAX_FILE],
    )
    return plan_of(description), models


def _facts(step: PipelineStep) -> dict[str, Any]:
    return {
        "network": step.network,
        "version": step.version,
        "model": step.model,
        "device": step.device,
        "config": dict(step.config),
        "inputs": list(step.inputs),
        "outputs": list(step.outputs.values()),
        "each": list(step.each),
        "when": bool(step.when),
        "axes": {name: list(axes) for name, axes in step.axes.items()},
    }


def _step(node: ir.Node) -> PipelineStep:
    facts = json.loads(node.attributes[_STEP].as_string())
    given = [_given(value) for value in node.inputs]
    when = given.pop() if facts["when"] else ""
    if not isinstance(when, str) or len(given) != len(facts["inputs"]):
        raise ValueError("its inputs do not fit")
    outputs = [value.name or "" for value in node.outputs]
    if len(outputs) != len(facts["outputs"]) or bool(facts["network"]) == bool(facts["model"]):
        raise ValueError("its outputs do not fit")
    if bool(facts["model"]) != (_MODEL in node.attributes):
        raise ValueError("its model is missing")
    return PipelineStep(
        node.name or "",
        str(facts["network"]),
        str(facts["version"]),
        str(facts["model"]),
        str(facts["device"]),
        {str(key): str(text) for key, text in facts["config"].items()},
        dict(zip(map(str, facts["inputs"]), given, strict=True)),
        dict(zip(outputs, map(str, facts["outputs"]), strict=True)),
        tuple(map(str, facts["each"])),
        when,
        _axes(facts),
    )


def _axes(facts: Mapping[str, Any]) -> dict[str, tuple[int | None, ...]]:
    found = {
        str(name): tuple(None if size is None else int(size) for size in sizes)
        for name, sizes in facts.get("axes", {}).items()
    }
    if found and (found.keys() != set(facts["each"]) or not all(found.values())):
        raise ValueError("its axes do not fit")
    return found


def _given(value: ir.Value | None) -> str | StepConstant:
    if value is None or not value.name:
        raise ValueError("an input is missing")
    if value.const_value is not None:
        array = value.const_value.numpy()
        return StepConstant(array.astype(object) if array.dtype.kind == "S" else array)
    return value.name


def _initializer(name: str, array: Array) -> ir.Value:
    if array.dtype == object:
        texts = np.array([str(each).encode() for each in array.flat], object)
        tensor: ir.TensorProtocol = ir.StringTensor(texts.reshape(array.shape), name=name)
    else:
        tensor = ir.Tensor(array, name=name)
    return ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
    )
