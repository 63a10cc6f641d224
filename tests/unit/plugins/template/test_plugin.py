"""TEMPLATE's own: what the conformance suite cannot know."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from headrace.plugins import template
from headrace.plugins.template.executable_network import TemplateNetwork
from headrace.runtime.config.key import Range
from headrace.runtime.device.api import PLUGIN_API_VERSION
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument
from headrace.testing import networks
from headrace.testing.infer_request import InferRequest, infer_once
from headrace.testing.services import services

MAX_LINES = 210


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with services() as offered:
        yield template.create_plugin("TEMPLATE", offered, {})


def test_a_device_without_networks_takes_no_memory_for_an_evaluator() -> None:
    code = (
        "import sys, headrace.plugins.template\n"
        "print(*sys.modules.keys() & {'onnx.reference', 'onnxscript'})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not found.stdout.split()


def test_the_whole_plugin_is_some_two_hundred_lines() -> None:
    files = Path(str(template.__file__)).parent.glob("*.py")
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= MAX_LINES


def test_the_entry_point_leads_to_the_creation_function() -> None:
    (point,) = importlib.metadata.entry_points(group="headrace.plugins", name="TEMPLATE")
    assert point.load() is template.create_plugin


def test_the_creation_function_declares_its_plugin_api() -> None:
    assert vars(template.create_plugin)["headrace_plugin_api"] == PLUGIN_API_VERSION


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("AVAILABLE_DEVICES", ["0"]),
        ("FULL_DEVICE_NAME", "Template Device Full Name"),
        ("DEVICE_ARCHITECTURE", "TEMPLATE"),
        ("OPTIMIZATION_CAPABILITIES", ["FP32", "HARDWARE_CONVOLUTION"]),
        ("RANGE_FOR_ASYNC_INFER_REQUESTS", Range(1, 1, 1)),
        ("IMPORT_EXPORT_SUPPORT", True),
        ("ONNX_OPSET", onnx.defs.onnx_opset_version()),
    ],
)
def test_a_metric_has_its_value(plugin: Plugin, metric: str, value: object) -> None:
    assert plugin.get_metric(metric) == value


def test_layers_are_timed_unless_told_otherwise(plugin: Plugin) -> None:
    assert plugin.get_config("PERF_COUNT") is True


def test_the_device_has_a_key_of_its_own_for_its_streams(plugin: Plugin) -> None:
    assert plugin.get_config("THROUGHPUT_STREAMS") == 1
    plugin.set_config({"THROUGHPUT_STREAMS": "3"})
    assert plugin.get_metric("RANGE_FOR_STREAMS") == Range(1, 3, 1)
    plugin.set_config({"NUM_STREAMS": "2"})
    assert plugin.get_metric("RANGE_FOR_ASYNC_INFER_REQUESTS") == Range(1, 2, 1)


def test_streams_that_run_already_follow_the_key(plugin: Plugin) -> None:
    network = load(plugin)
    assert network.executor is not None
    plugin.set_config({"THROUGHPUT_STREAMS": "3"})
    assert network.executor.streams == 3


def test_networks_run_on_the_one_device_there_is(plugin: Plugin) -> None:
    network = load(plugin)
    assert isinstance(network, TemplateNetwork)
    assert network.get_metric("EXECUTION_DEVICES") == ["TEMPLATE.0"]


def test_layers_in_bodies_are_part_of_the_layer_around_them(plugin: Plugin) -> None:
    case = networks.loop()
    network = plugin.load_network(Load(case.network))
    request = InferRequest(network)
    request.infer(case.inputs)
    assert [count.layer for count in request.performance_counts] == ["yes", "repeat"]
    assert {count.execution_type for count in request.performance_counts} == {"reference"}


def test_a_layer_that_fails_is_named_with_its_reason(plugin: Plugin) -> None:
    case = networks.fragile()
    request = InferRequest(plugin.load_network(Load(case.network)))
    request.start_async({**case.inputs, "at": np.array([7])})
    with pytest.raises(InvalidArgument, match=r"layer 'pick' \(Gather\).*out of bounds") as caught:
        request.result()
    assert caught.value.field == "inputs"


def load(plugin: Plugin) -> ExecutableNetwork:
    return plugin.load_network(Load(networks.add().network))


def test_an_answer_has_the_type_that_its_port_declares(plugin: Plugin) -> None:
    text = "g (int32[2] x) => (int32[a] y) { y = ReduceSumSquare(x) }"
    found = infer_once(plugin, text, np.array([3, 4], np.int32))["y"]
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.dtype(np.int32)
    assert found.tolist() == [25]
