"""Which of ONNX Runtime's own operators run in the server's process, and with what inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest

from headrace.plugins import cpu
from headrace.plugins.cpu.claims import contributed
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.device.services import Services
from headrace.runtime.errors import InvalidArgument, UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.testing.backend_cases.cases import BackendCase
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest, infer_once
from tools.fuzz.devices.sweep.further_cases import further_cases

CASES = [case for case in further_cases() if case.operator.startswith(contributed.DOMAIN)]


def is_checked(case: BackendCase) -> bool:
    domain, _, name = case.operator.rpartition(".")
    return domain == contributed.DOMAIN and name in contributed.CHECKED


def run(plugin: Plugin, case: BackendCase, **others: Any) -> dict[str, Any]:
    model = undeclared(case) if others else case.model
    return infer_once(plugin, Network.from_bytes(model), **{**case.data_sets[0][0], **others})


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


UNCHECKED = [case for case in CASES if not is_checked(case)]


def test_operators_that_are_not_checked_run_in_a_process_beside_the_server(plugin: Plugin) -> None:
    """All in one process, which a case that the kernel refuses does not end."""
    try:
        for case in UNCHECKED:
            given = Network.from_bytes(case.model)
            assert not plugin.query_network(given, {}).unsupported, case
            compiled = plugin.load_network(Load(given))
            assert compiled.process == "worker"
            assert "it runs in a process of its own" in compiled.notes[0]
            assert compiled.executor is plugin.executor(compiled.config)  # type: ignore[attr-defined]
            compare(compiled, case)
            compiled.close()
    finally:
        plugin.close()


def compare(compiled: ExecutableNetwork, case: BackendCase) -> None:
    """Compares with ONNX Runtime, which may refuse the case's values."""
    feed = dict(case.data_sets[0][0])
    session = onnxruntime.InferenceSession(case.model, providers=["CPUExecutionProvider"])
    try:
        wanted = session.run(None, feed)
    except Exception:  # noqa: BLE001 - its errors have no class that has a name
        with pytest.raises(InvalidArgument):
            InferRequest(compiled).infer(feed)
        return
    for one, other in zip(InferRequest(compiled).infer(feed).values(), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=str(case))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", UNCHECKED[:1], ids=str)
def test_a_device_that_is_to_have_no_process_refuses_it(
    offered: Services, case: BackendCase
) -> None:
    plugin = cpu.create_plugin("CPU", offered, {"ISOLATION": "NONE"})
    given = Network.from_bytes(case.model)
    (layer,) = plugin.query_network(given, {}).unsupported
    assert "ISOLATION=NONE" in layer.reason
    with pytest.raises(UnsupportedLayers, match="ISOLATION=NONE"):
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
    given = network_of(model)
    (layer,) = plugin.query_network(given, {}).unsupported
    assert layer.op_type == "QLinearConcat"
    with pytest.raises(UnsupportedLayers):
        plugin.load_network(Load(given))
