"""Which of ONNX Runtime's own operators run in the server's process, and with what inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from headrace.plugins import cpu
from headrace.plugins.cpu import contributed
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import InvalidArgument, UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.testing.backend_cases.cases import BackendCase
from headrace.testing.fuzz.sweep.further_cases import further_cases
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services

CASES = [case for case in further_cases() if case.operator.startswith(contributed.DOMAIN)]


@pytest.fixture
def offered() -> Iterator[Services]:
    with services() as offered:
        yield offered


@pytest.fixture
def plugin(offered: Services) -> Plugin:
    return cpu.create_plugin("CPU", offered, {})


def is_checked(case: BackendCase) -> bool:
    domain, _, name = case.operator.rpartition(".")
    return domain == contributed.DOMAIN and name in contributed.CHECKED


def run(plugin: Plugin, case: BackendCase, **others: Any) -> dict[str, Any]:
    model = undeclared(case) if others else case.model
    compiled = plugin.load_network(Load(Network.from_bytes(model), {}))
    try:
        return InferRequest(compiled).infer({**case.data_sets[0][0], **others})
    finally:
        compiled.close()


def undeclared(case: BackendCase) -> bytes:
    """The network without shapes."""
    model = onnx.ModelProto.FromString(case.model)
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.ClearField("shape")
    return model.SerializeToString()


def test_there_is_a_case_of_each_operator_that_is_checked() -> None:
    names = {case.operator.rpartition(".")[2] for case in CASES if is_checked(case)}
    assert names == contributed.CHECKED


@pytest.mark.parametrize("case", [*filter(is_checked, CASES)], ids=str)
def test_an_operator_that_is_checked_runs(plugin: Plugin, case: BackendCase) -> None:
    assert run(plugin, case)


@pytest.mark.parametrize("case", [case for case in CASES if not is_checked(case)], ids=str)
def test_an_operator_that_is_not_checked_is_refused(plugin: Plugin, case: BackendCase) -> None:
    given = Network.from_bytes(case.model)
    (layer,) = plugin.query_network(given, {}).unsupported
    assert "--isolate-devices" in layer.reason
    with pytest.raises(UnsupportedLayers, match="--isolate-devices"):
        plugin.load_network(Load(given))


def test_in_a_process_of_its_own_the_device_takes_any_operator(offered: Services) -> None:
    plugin = cpu.create_plugin("CPU", replace(offered, isolated=True), {})
    (case,) = (case for case in CASES if case.operator == "com.microsoft.Inverse")
    assert run(plugin, case)


@pytest.mark.parametrize(
    ("operator", "others"),
    [  # which ended the process, or were answered with memory of others
        ("DynamicQuantizeLSTM", {"x": np.ones((2, 1, 0)), "w": np.ones((1, 0, 8))}),
        ("QLinearSoftmax", {"v": np.ones(0)}),
        ("SkipLayerNormalization", {"s": np.ones((0, 2, 4))}),
        ("SkipSimplifiedLayerNormalization", {"s": np.ones((0, 2, 4))}),
    ],
)
def test_inputs_that_a_kernel_does_not_survive_are_refused(
    plugin: Plugin, operator: str, others: dict[str, Any]
) -> None:
    case = next(case for case in CASES if case.operator == f"{contributed.DOMAIN}.{operator}")
    feed = case.data_sets[0][0]
    given = {name: value.astype(feed[name].dtype) for name, value in others.items()}
    with pytest.raises(InvalidArgument, match="layer 'y'"):
        run(plugin, case, **given)


@pytest.mark.parametrize("name", ["r", "v", "s", "u"])
def test_a_scale_that_is_an_empty_constant_ends_no_process(plugin: Plugin, name: str) -> None:
    case = next(case for case in CASES if case.operator == "com.microsoft.QLinearConcat")
    value = case.data_sets[0][0][name]
    model = onnx.ModelProto.FromString(undeclared(case))
    (port,) = (each for each in model.graph.input if each.name == name)
    model.graph.input.remove(port)
    model.graph.initializer.append(onnx.numpy_helper.from_array(value[None][:0], name))
    given = Network.from_bytes(model.SerializeToString())
    (layer,) = plugin.query_network(given, {}).unsupported
    assert layer.op_type == "QLinearConcat"
    with pytest.raises(UnsupportedLayers):
        plugin.load_network(Load(given))
