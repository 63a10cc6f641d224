"""OPENVINO's own: what the conformance suite cannot know."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from headrace.plugins import openvino as openvino_plugin
from headrace.plugins.openvino.backend import core
from headrace.plugins.openvino.backend.compiler import Compiler
from headrace.plugins.openvino.backend.core import Runtime
from headrace.plugins.openvino.config import SCHEMA, precision, properties
from headrace.plugins.openvino.library import openvino
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.plugins.openvino.running.shapes import TRIALS
from headrace.runtime.device.api import PLUGIN_API_VERSION
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument, UnsupportedLayers
from headrace.runtime.execution.job import Job
from headrace.testing import networks
from headrace.testing.case import Case, network_of, parse
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest
from tests.support.patience import PATIENCE_SECONDS


def load(
    plugin: Plugin, model: str | onnx.ModelProto, config: dict[str, str] | None = None
) -> ExecutableNetwork:
    return plugin.load_network(Load(network_of(model), config or {}))


def infer(network: ExecutableNetwork, **inputs: Any) -> dict[str, Any]:
    return InferRequest(network).infer(inputs)


# -- what it says of itself --


def test_the_creation_function_declares_its_plugin_api() -> None:
    assert vars(openvino_plugin.create_plugin)["headrace_plugin_api"] == PLUGIN_API_VERSION


def test_importing_it_reports_to_nobody() -> None:
    program = (
        "import sys, threading; import headrace.plugins.openvino.backend.compiler; "
        "print([t.name for t in threading.enumerate()], 'openvino_telemetry' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert said.strip() == "['MainThread'] False"


def test_its_devices_and_what_they_can_do_are_openvinos(plugin: Plugin) -> None:
    core = openvino.Core()
    assert plugin.get_metric("AVAILABLE_DEVICES") == list(core.available_devices)
    for device in core.available_devices:
        named = {"DEVICE_ID": device}
        for metric in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES"):
            assert plugin.get_metric(metric, named) == core.get_property(device, metric)


def test_it_tells_what_kind_of_device_each_is(compiler: Compiler, plugin: Plugin) -> None:
    assert plugin.get_metric("DEVICE_TYPE", {"DEVICE_ID": "CPU"}) == "PROCESSOR"
    kinds = {compiler.runtime.device_type(each) for each in compiler.runtime.devices}
    assert kinds <= {"DISCRETE", "INTEGRATED", "PROCESSOR"}
    assert compiler.runtime.device_type("GPU.9") == "INTEGRATED"


def test_a_network_is_on_the_device_that_clients_name(plugin: Plugin) -> None:
    network = plugin.load_network(Load(matrices().network, {"DEVICE_ID": "CPU"}))
    assert network.get_metric("EXECUTION_DEVICES") == ["OPENVINO.CPU"]


# -- precision --


def matrices() -> Case:
    text = "m (float[8,64] x) => (float[8,64] y) { [product] y = MatMul(x, w) }"
    return Case("m", parse(text, {"w": networks.random(64, 64)}), {"x": networks.random(8, 64)})


def worst(plugin: Plugin, config: dict[str, str]) -> float:
    """The largest error of a product of matrices, in units of its largest element."""
    case = matrices()
    network = plugin.load_network(Load(case.network, config))
    for _ in range(1 + TRIALS):
        outputs = infer(network, **case.inputs)
    expected = case.expected()["y"]
    return float(np.abs(outputs["y"] - expected).max() / np.abs(expected).max())


@pytest.mark.usefixtures("openvino_is_faster")
def test_a_network_computes_in_float32_unless_asked_otherwise(plugin: Plugin) -> None:
    assert worst(plugin, {}) < 1e-5
    assert (
        plugin.load_network(Load(matrices().network)).config.get_parameter(
            "INFERENCE_PRECISION_HINT"
        )
        == "f32"
    )


@pytest.mark.usefixtures("openvino_is_faster")
@pytest.mark.parametrize("hint", ["bf16", "f16"])
def test_less_precision_is_there_for_who_asks_where_the_device_has_it(
    plugin: Plugin, hint: str
) -> None:
    capabilities = plugin.get_metric("OPTIMIZATION_CAPABILITIES")
    assert isinstance(capabilities, list)
    if {"bf16": "BF16", "f16": "FP16"}[hint] in capabilities:
        assert 1e-5 < worst(plugin, {"INFERENCE_PRECISION_HINT": hint}) < 2e-2
    else:
        with pytest.raises(InvalidArgument, match=hint):
            worst(plugin, {"INFERENCE_PRECISION_HINT": hint})


def test_a_precision_that_the_device_lacks_is_refused(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "capabilities", lambda *_: ("FP32",))
    for use in (
        plugin.set_config,
        lambda config: plugin.load_network(Load(matrices().network, config)),
    ):
        with pytest.raises(InvalidArgument, match="does not compute in bf16") as caught:
            use({"INFERENCE_PRECISION_HINT": "bf16"})
        assert caught.value.field == "config['INFERENCE_PRECISION_HINT']"


@pytest.mark.parametrize(
    ("capabilities", "hint", "computed"),
    [
        (("FP32", "BF16"), "", "f32"),
        (("FP32", "BF16"), "bf16", "bf16"),
        (("FP16", "INT8"), "", "f16"),  # as an NPU says
        (("FP16", "FP32"), "f16", "f16"),
    ],
)
def test_what_a_device_computes_in_follows_from_what_it_has(
    capabilities: tuple[str, ...], hint: str, computed: str
) -> None:
    config = SCHEMA.resolve({"INFERENCE_PRECISION_HINT": hint})
    assert precision(config, "NPU", capabilities) == computed


@pytest.mark.parametrize("type_name", ["INT8", "UINT8", "INT4", "UINT4"])
@pytest.mark.parametrize("operator", ["DequantizeLinear", "Cast"])
@pytest.mark.parametrize("product", ["MatMul(x, w)", "Gemm(x, w)"])
def test_floats_that_meet_small_constants_are_not_rounded(
    plugin: Plugin, type_name: str, operator: str, product: str
) -> None:
    """OpenVINO's usual properties round x to 8 bits, or fail in the run."""
    random = np.random.default_rng(0)
    bits = 4 if type_name.endswith("4") else 8
    low = 0 if type_name.startswith("U") else -(2 ** (bits - 1))
    small = random.integers(low, low + 2**bits, (64, 48))
    scales = random.uniform(0.001, 0.01, 48).astype(np.float32)
    wide = {
        "DequantizeLinear": "DequantizeLinear<axis = 1>(small, scales)",
        "Cast": "Mul(floats, scales)",
    }[operator]
    layers = f"floats = Cast<to = 1>(small) w = {wide} y = {product}"
    model = parse(f"p (float[N,64] x) => (float[N,48] y) {{ {layers} }}")
    stored = ir.tensor(small.astype(ir.DataType[type_name].numpy()), name="small")
    model.graph.initializer.append(ir.serde.serialize_tensor(stored))
    model.graph.initializer.append(numpy_helper.from_array(scales, "scales"))
    x = random.standard_normal((5, 64)).astype(np.float32)
    found = infer(load(plugin, model), x=x)["y"]
    right = x.astype(np.float64) @ (small * scales.astype(np.float64))
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-5 * abs(right).max())


def test_a_device_gets_the_properties_that_it_has() -> None:
    config = SCHEMA.resolve({"INFERENCE_NUM_THREADS": "4"})
    settable = {"PERF_COUNT", "NUM_STREAMS", "INFERENCE_PRECISION_HINT"}
    of_gpu = {"INFERENCE_PRECISION_HINT": "f16", "PERF_COUNT": True, "NUM_STREAMS": 2}
    assert properties(config, "f16", settable, 2) == of_gpu
    of_processor = properties(config, "f32", {"INFERENCE_NUM_THREADS", "NUM_STREAMS"}, 2)
    assert of_processor == {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 4}


# -- networks --


def test_local_functions_are_inlined(plugin: Plugin) -> None:
    case = networks.local_function()
    network = plugin.load_network(Load(case.network, {"DISABLE_TRANSFORMATIONS": "YES"}))
    assert_same_outputs(infer(network, **case.inputs), case.expected(), 1e-5)
    assert plugin.query_network(case.network, {}).supported_layers == {"call": "OPENVINO"}


def test_an_input_that_nothing_reads_is_taken_and_ignored(plugin: Plugin) -> None:
    text = "f (float[2] a, float[2] unread, float[2] b) => (float[2] y) { y = Sub(a, b) }"
    network = load(plugin, text)
    one = np.ones(2, np.float32)
    outputs = infer(network, a=3 * one, unread=one, b=one)
    np.testing.assert_array_equal(outputs["y"], 2 * one)


@pytest.mark.parametrize("disabled", ["YES", "NO"])
def test_inputs_are_told_apart_where_openvino_forgets_their_names(
    plugin: Plugin, disabled: str
) -> None:
    text = """f (float[2] a, float[2] b) => (float[2] y, float[2] z) {
        z = Neg(b)
        y = Dropout(a)
    }"""
    network = load(plugin, text, {"DISABLE_TRANSFORMATIONS": disabled})
    one = np.ones(2, np.float32)
    outputs = infer(network, a=3 * one, b=one)
    np.testing.assert_array_equal(outputs["y"], 3 * one)
    np.testing.assert_array_equal(outputs["z"], -one)


def test_one_tensor_may_be_several_outputs(plugin: Plugin) -> None:
    text = "f (float[2] x) => (float[2] y, float[2] z) { y = Neg(x)\n z = Identity(y) }"
    outputs = infer(load(plugin, text), x=np.ones(2, np.float32))
    assert {name: value.tolist() for name, value in outputs.items()} == {
        "y": [-1, -1],
        "z": [-1, -1],
    }


# -- export and import --


def test_an_exported_network_comes_back_without_being_compiled(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = matrices()
    native = plugin.load_network(Load(case.network)).export()
    assert native
    monkeypatch.delattr(Runtime, "convert")
    network = plugin.load_network(Load(case.network, native=native))
    assert network.restored
    assert network.export() == native
    for _ in range(1 + TRIALS):
        assert_same_outputs(infer(network, **case.inputs), case.expected(), 1e-4)


def test_a_network_that_came_back_checks_requests_as_before(plugin: Plugin) -> None:
    text = "f (float[4] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }"
    case = Case("f", parse(text), {})
    native = plugin.load_network(Load(case.network)).export()
    network = plugin.load_network(Load(case.network, {"FALLBACK": "NO"}, native=native))
    x = np.arange(4, dtype=np.float32)
    for _ in range(1 + TRIALS):
        infer(network, x=x, i=np.array([3]))
    with pytest.raises(InvalidArgument, match="out of bounds"):
        infer(network, x=x, i=np.array([4]))


def test_bytes_that_are_none_of_its_own_are_compiled_anew_and_it_says_so(plugin: Plugin) -> None:
    case = networks.mlp()
    network = plugin.load_network(Load(case.network, native=b"no such network"))
    assert any("compiled anew" in note for note in network.notes)
    assert_same_outputs(infer(network, **case.inputs), case.expected(), 1e-5)


def test_a_network_with_free_sizes_exports_nothing(plugin: Plugin) -> None:
    assert plugin.load_network(Load(networks.mlp().network)).export() == b""


# -- profiles --


def profiled(network: ExecutableNetwork, case: Case) -> Job:
    ended = threading.Event()
    job = Job(case.inputs, lambda _: ended.set(), profile=True)
    network.submit(job)
    assert ended.wait(PATIENCE_SECONDS)
    return job


@pytest.mark.usefixtures("openvino_is_faster")
def test_a_profile_names_the_layers_that_were_fused(plugin: Plugin) -> None:
    case = networks.image()
    network = plugin.load_network(Load(case.network))
    assert isinstance(plugin, OpenVinoPlugin)
    first = job = profiled(network, case)
    for _ in range(2 + TRIALS):
        job = profiled(network, case)
        plugin._compiles.wait(network)
    assert {layer.device for layer in first.layers} == {"CPU.0"}
    by_layer = {layer.layer: layer for layer in job.layers}
    assert set(by_layer["conv2"].origins) == {"conv2", "shortcut", "relu2"}
    assert all(layer.device.startswith("OPENVINO") for layer in job.layers)
    assert sum(layer.seconds for layer in job.layers) > 0


def test_large_weights_go_by_a_file_that_is_gone_then(
    plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_FILED_BYTES", 4096)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    written: list[Path] = []
    write = core._write

    def watched(model: ir.Model, folder: Path) -> Path:
        written.append(folder)
        return write(model, folder)

    monkeypatch.setattr(core, "_write", watched)
    rng = np.random.default_rng(0)
    weights = rng.random((64, 64), np.float32)
    more = rng.random((64, 64)).astype(np.float16)
    proto = parse(
        "g (float[N,64] x) => (float[N,64] y) "
        "{ h = Cast<to=1>(v) p = MatMul(x, w) y = MatMul(p, h) }"
    )
    proto.graph.initializer.extend(
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(more, "v")]
    )
    x = rng.random((2, 64), np.float32)
    expected = x @ weights @ more.astype(np.float32)
    network = load(plugin, proto)
    for _ in range(2):
        np.testing.assert_allclose(infer(network, x=x)["y"], expected, rtol=1e-4)
    assert isinstance(plugin, OpenVinoPlugin)
    plugin._compiles.wait(network)
    assert written
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    network = load(plugin, proto)
    for _ in range(2):
        np.testing.assert_allclose(infer(network, x=x)["y"], expected, rtol=1e-4)
    plugin._compiles.wait(network)
    assert network.get_metric("COMPILED_SHAPES") == ["2x64"]


@pytest.mark.parametrize("case", networks.control_flow(), ids=lambda case: case.name)
def test_no_layer_with_a_body_is_run(plugin: Plugin, case: Case) -> None:
    """OpenVINO alone answers some of them with memory of other requests."""
    with pytest.raises(UnsupportedLayers, match="branches and loops"):
        plugin.load_network(Load(case.network))
