"""A pipeline as a network, and back."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from headrace.runtime.errors import InvalidArgument, InvalidModel
from headrace.runtime.intake.limits import Limits
from headrace.runtime.network.graph import graph_of
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import StepConstant, read_pipeline
from headrace.runtime.pipelines.model import network_of, plan_in
from headrace.runtime.pipelines.order import plan_of
from headrace.runtime.pipelines.ports import StepPorts, ports_of
from headrace.testing.case import parse

TEXT = """
inputs = ["image", "found"]

[[step]]
name = "read"
network = "reader:3"
each = "crops"
when = "found"
outputs = {texts = "y"}

[step.inputs]
x = "crops"
scale = {value = [1.5, 2.5], dtype = "FP32"}
unit = {value = "é", dtype = "BYTES"}

[[step]]
name = "cut"
model = "cut.onnx"
device = "BATCH:CPU(4)"
config = {NUM_STREAMS = 1}
inputs = {x = "image"}
outputs = {crops = "y"}

[outputs]
result = "texts"
"""
MODEL = parse("m (float[N] x) => (float[N] y) { y = Neg(x) }").SerializeToString()


def network() -> Network:
    description = read_pipeline(tomllib.loads(TEXT))
    return network_of(description, {"cut.onnx": MODEL}, Limits())


def test_a_pipeline_comes_back_as_it_was() -> None:
    wanted = plan_of(read_pipeline(tomllib.loads(TEXT)))
    found, models = plan_in(Network.from_bytes(network().to_bytes()))
    assert (found.inputs, found.outputs) == (wanted.inputs, wanted.outputs)
    assert bytes(models["cut"]) == MODEL
    for ours, theirs in zip(found.steps, wanted.steps, strict=True):
        assert ours.name == theirs.name
        assert (ours.network, ours.version, ours.model) == (
            theirs.network,
            theirs.version,
            theirs.model,
        )
        assert (ours.device, ours.config) == (theirs.device, theirs.config)
        assert (ours.outputs, ours.each, ours.when) == (theirs.outputs, theirs.each, theirs.when)
    scale, unit = found.steps[1].inputs["scale"], found.steps[1].inputs["unit"]
    assert isinstance(scale, StepConstant)
    assert isinstance(unit, StepConstant)
    np.testing.assert_array_equal(scale.array, np.array([1.5, 2.5], np.float32))
    assert (unit.array.dtype.kind, unit.array.item()) == ("O", "é".encode())


def test_a_pipeline_comes_back_with_the_file_that_describes_it() -> None:
    description = read_pipeline(tomllib.loads(TEXT), "config.json: pipeline 'ours'")
    made = network_of(description, {"cut.onnx": MODEL}, Limits())
    plan, _ = plan_in(Network.from_bytes(made.to_bytes()))
    assert plan.file == "config.json: pipeline 'ours'"
    with pytest.raises(InvalidArgument, match="no input 'x'") as caught:
        ports_of(plan, dict.fromkeys(("cut", "read"), StepPorts((), ())))
    assert caught.value.field == "config.json: pipeline 'ours': step 'cut'"


def test_its_layers_are_its_steps_and_can_be_drawn() -> None:
    graph = graph_of(network(), {"cut": "CPU"})
    assert [(each.name, each.op_type) for each in graph.layers] == [
        ("cut", "cut"),
        ("read", "reader"),
    ]
    assert graph.layers[1].inputs == ("crops", "read/scale", "read/unit", "found")
    assert [port.name for port in graph.inputs] == ["image", "found"]
    assert [port.name for port in graph.outputs] == ["result"]


def test_a_model_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidModel, match=r"'cut\.onnx' is missing"):
        network_of(read_pipeline(tomllib.loads(TEXT)), {}, Limits())


def test_the_models_of_all_steps_count_as_one_model() -> None:
    with pytest.raises(InvalidModel, match="bytes"):
        network_of(read_pipeline(tomllib.loads(TEXT)), {"cut.onnx": MODEL}, Limits(model_bytes=64))


def test_another_model_is_no_pipeline() -> None:
    with pytest.raises(InvalidModel, match="not a pipeline"):
        plan_in(Network.from_bytes(MODEL))


@pytest.mark.parametrize(
    "attributes",
    ["", 'step = "no JSON"', 'step = "{}"', 'step = "[]"', 'step = "1"', "step = 1"],
)
def test_a_step_that_somebody_else_wrote_may_be_anything(attributes: str) -> None:
    text = f"m (float[N] x) => (float[N] y) {{ y = headrace.pipeline.f <{attributes}> (x) }}"
    model = parse(text.replace(" <> ", " "))
    del model.opset_import[:]
    model.opset_import.add(domain="headrace.pipeline", version=1)
    with pytest.raises(InvalidModel, match="cannot be read"):
        plan_in(Network.from_bytes(model.SerializeToString()))
