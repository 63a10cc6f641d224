"""CPU's own: what the conformance suite cannot know."""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import onnx
import pytest

from headrace.plugins import cpu
from headrace.plugins.cpu.backend import session
from headrace.plugins.cpu.plugin import processor_name
from headrace.runtime.config import hints
from headrace.runtime.config.key import Range
from headrace.runtime.device.api import PLUGIN_API_VERSION
from headrace.runtime.device.device import Device
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import (
    Cancelled,
    FailedPrecondition,
    InvalidArgument,
    UnsupportedLayers,
)
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.system.processors import usable_processors
from headrace.testing import networks
from headrace.testing.case import Case, network_of, parse
from headrace.testing.compare import assert_same, assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services
from tests.support.patience import PATIENCE_SECONDS

PROCESSORS = 4


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    monkeypatch.setattr(hints, "usable_processors", lambda: PROCESSORS)
    with services() as offered:
        yield cpu.create_plugin("CPU", offered, {})


def load(plugin: Plugin, text: str, config: dict[str, str] | None = None) -> ExecutableNetwork:
    return plugin.load_network(Load(network_of(text), config or {}))


def infer(network: ExecutableNetwork, **inputs: Any) -> dict[str, Any]:
    return InferRequest(network).infer(inputs)


# -- what it says of itself --


def test_the_entry_point_leads_to_the_creation_function() -> None:
    (point,) = importlib.metadata.entry_points(group="headrace.plugins", name="CPU")
    assert point.load() is cpu.create_plugin


def test_the_creation_function_declares_its_plugin_api() -> None:
    assert vars(cpu.create_plugin)["headrace_plugin_api"] == PLUGIN_API_VERSION


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("AVAILABLE_DEVICES", ["0"]),
        ("OPTIMIZATION_CAPABILITIES", ["FP32", "FP64", "INT8"]),
        ("RANGE_FOR_STREAMS", Range(1, usable_processors())),
        ("IMPORT_EXPORT_SUPPORT", True),
    ],
)
def test_a_metric_has_its_value(plugin: Plugin, metric: str, value: object) -> None:
    assert plugin.get_metric(metric) == value


def test_the_full_name_is_the_processors(plugin: Plugin, tmp_path: Path) -> None:
    assert plugin.get_metric("FULL_DEVICE_NAME") == processor_name()
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some Processor 9000\nflags\t: fpu\n")
    assert processor_name(cpuinfo) == "Some Processor 9000"
    assert processor_name(tmp_path / "missing")


# -- streams and threads --


def test_for_latency_a_network_with_much_work_takes_one_of_the_devices_streams(
    plugin: Plugin,
) -> None:
    text = "m (float[500,500] x, float[500,500] w) => (float[500,500] y) { y = MatMul(x, w) }"
    network = load(plugin, text, {"PERFORMANCE_HINT": "LATENCY"})
    assert isinstance(plugin, Device)
    assert plugin.streams() == PROCESSORS
    shown = network.config.to_strings()
    assert (shown["NUM_STREAMS"], shown["INFERENCE_NUM_THREADS"]) == ("1", str(PROCESSORS))
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 1
    network.close()


def test_a_tiny_one_runs_on_one_thread_and_leaves_the_others_to_other_requests(
    plugin: Plugin,
) -> None:
    network = plugin.load_network(Load(networks.add().network, {"PERFORMANCE_HINT": "LATENCY"}))
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == PROCESSORS
    network.close()


def test_a_network_shows_what_a_hint_has_become(plugin: Plugin) -> None:
    hint = {"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": "2"}
    network = plugin.load_network(Load(networks.add().network, hint))
    shown = network.config.to_strings()
    assert (shown["NUM_STREAMS"], shown["INFERENCE_NUM_THREADS"]) == ("2", "2")
    assert shown["PERFORMANCE_HINT"] == "THROUGHPUT"
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2
    network.set_config({"EXECUTION_TIMEOUT": "5"})
    assert network.config.to_strings()["NUM_STREAMS"] == "2"
    network.close()


def test_streams_that_run_are_not_bound_any_more(plugin: Plugin) -> None:
    plugin.set_config({"CPU_BIND_THREAD": "YES"})
    plugin.set_config({"CPU_BIND_THREAD": "NO"})
    network = plugin.load_network(Load(networks.add().network))
    with pytest.raises(FailedPrecondition, match="before the first load"):
        plugin.set_config({"CPU_BIND_THREAD": "YES"})
    assert plugin.get_config("CPU_BIND_THREAD") is False
    plugin.set_config({"CPU_BIND_THREAD": "NO"})
    network.close()


def test_bfloat16_arithmetic_is_not_promised(plugin: Plugin) -> None:
    with pytest.raises(InvalidArgument, match="INFERENCE_PRECISION_HINT"):
        plugin.load_network(Load(networks.add().network, {"INFERENCE_PRECISION_HINT": "bf16"}))


# -- networks of every kind --

CASES = [
    networks.mlp(),
    networks.image(),
    networks.transformer(),
    networks.recurrent(),
    networks.divide(),
    networks.string_identity(),
    networks.sequence(),
    networks.optional(),
    networks.optional(present=False),
    networks.local_function(),
    *networks.control_flow(),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_network_computes_what_the_reference_does(plugin: Plugin, case: Case) -> None:
    network = plugin.load_network(Load(case.network))
    assert_same_outputs(InferRequest(network).infer(case.inputs), case.expected(), 1e-5)
    network.close()


def test_the_batch_may_change_from_request_to_request(plugin: Plugin) -> None:
    case = networks.mlp()
    network = plugin.load_network(Load(case.network))
    for batch in (1, 5, 2):
        inputs = {"x": networks.random(batch, 8)}
        assert_same_outputs(InferRequest(network).infer(inputs), case.expected(inputs), 1e-5)
    network.close()


def test_strings_pass_as_text(plugin: Plugin) -> None:
    network = load(plugin, "s (string[N] x) => (string[N] y) { y = Concat<axis = 0>(x) }")
    given = networks.strings("grüße", b"bytes", "", "a\0b")
    assert infer(network, x=given)["y"].tolist() == ["grüße", "bytes", "", "a\0b"]
    with pytest.raises(InvalidArgument, match="UTF-8"):
        infer(network, x=networks.strings(b"\xff"))
    network.close()


@pytest.mark.parametrize(
    ("onnx_type", "dtype"),
    [
        ("bfloat16", ml_dtypes.bfloat16),
        ("float8e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8e5m2", ml_dtypes.float8_e5m2),
        ("int4", ml_dtypes.int4),
        ("uint4", ml_dtypes.uint4),
    ],
)
def test_types_that_numpy_lacks_go_in_and_out(plugin: Plugin, onnx_type: str, dtype: Any) -> None:
    number = getattr(onnx.TensorProto, onnx_type.upper())
    into = load(plugin, f"c (float[N] x) => ({onnx_type}[N] y) {{ y = Cast<to = {number}>(x) }}")
    back = load(plugin, f"c ({onnx_type}[N] x) => (float[N] y) {{ y = Cast<to = 1>(x) }}")
    given = np.array([0, 1, 2, 3, 4], np.float32)
    narrow = infer(into, x=given)["y"]
    assert_same(narrow, given.astype(dtype), 0)
    assert infer(back, x=narrow)["y"].tolist() == given.tolist()
    into.close()
    back.close()


def test_an_input_that_is_not_contiguous_is_read_right(plugin: Plugin) -> None:
    case = networks.add()
    network = plugin.load_network(Load(case.network))
    wide = networks.random(3, 2).T
    result = infer(network, x=wide, y=np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(result["z"], wide)
    network.close()


def test_a_network_newer_than_the_backend_is_computed(plugin: Plugin) -> None:
    model = parse("n (float[2] x) => (float[2] y) { y = Abs(x) }")
    model.opset_import[0].version = onnx.defs.onnx_opset_version()
    model.ir_version = onnx.IR_VERSION
    network = plugin.load_network(Load(network_of(model)))
    assert infer(network, x=np.array([-1, 2], np.float32))["y"].tolist() == [1, 2]
    network.close()


def test_a_network_of_operators_newer_than_the_backend_is_explained(plugin: Plugin) -> None:
    model = parse("n (float[2,4] x) => (float[2,2] y) { [gate] y = SwiGLU(x, x) }")
    model.opset_import[0].version = onnx.defs.onnx_opset_version()
    with pytest.raises(UnsupportedLayers, match="operator set") as caught:
        plugin.load_network(Load(network_of(model)))
    assert [layer.layer for layer in caught.value.layers] == ["gate"]


def test_what_loads_and_would_be_wrong_is_not_loaded(plugin: Plugin) -> None:
    text = "u (float[1,1,2,2] x, int64[1,1,2,2] i, int64[4] s) => (float[a,b,c,d] y) "
    with pytest.raises(UnsupportedLayers, match="output_shape"):
        load(plugin, text + "{ y = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(x, i, s) }")


_TRAINED = "y, m, v = BatchNormalization<training_mode = 1>(x, s, s, mean, variance)"


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("body", [f"{_TRAINED} k = Neg(m)", f"{_TRAINED} k = Add(v, v)"])
def test_a_running_mean_that_requests_would_change_is_not_computed(
    plugin: Plugin, dtype: str, constant: bool, body: str
) -> None:
    """ONNX Runtime writes it over the constant, or over the caller's own memory."""
    given = f"{dtype}[1] mean, {dtype}[1] variance"
    inputs, constants = ("", f"<{given}>") if constant else (f", {given}", "")
    constants = constants.replace("mean", "mean = {0}").replace("variance", "variance = {0}")
    text = f"b (float[N,1,4] x, float[1] s{inputs}) => (float[N,1,4] y, {dtype}[1] k) "
    with pytest.raises(UnsupportedLayers, match="over its inputs"):
        load(plugin, f"{text}{constants} {{ {body} }}")


@pytest.mark.parametrize("optional", ["YES", "NO"])
def test_a_running_mean_that_is_a_result_is_the_same_for_equal_requests(
    plugin: Plugin, optional: str
) -> None:
    text = """b (float[N,1,4] x, float[1] s) => (float[N,1,4] y, float[1] m, float[1] v)
        <float[1] mean = {0}, float[1] variance = {1}> """
    network = load(plugin, f"{text} {{ {_TRAINED} }}", {"DISABLE_TRANSFORMATIONS": optional})
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    for _ in range(3):
        outputs = infer(network, x=x, s=np.ones(1, np.float32))
        np.testing.assert_allclose(outputs["m"], [0.15], rtol=1e-6)
        np.testing.assert_allclose(outputs["v"], [0.9 + 0.125], rtol=1e-6)
    network.close()


# -- cancelling --


@pytest.mark.parametrize("profile", [False, True])
def test_an_endless_loop_ends_when_it_is_cancelled(plugin: Plugin, profile: bool) -> None:
    case = networks.endless()
    network = plugin.load_network(Load(case.network))
    request = InferRequest(network)
    request.start_async(case.inputs, profile=profile)
    assert not request.wait(0.1)
    request.cancel()
    assert request.wait(PATIENCE_SECONDS)
    with pytest.raises(Cancelled):
        request.result()
    network.close()


def test_a_cancel_leaves_the_next_request_alone(plugin: Plugin) -> None:
    endless, case = networks.endless(), networks.add()
    network = plugin.load_network(Load(endless.network))
    other = plugin.load_network(Load(case.network))
    for _ in range(3):
        request = InferRequest(network)
        request.start_async(endless.inputs)
        request.cancel()
        assert request.wait(PATIENCE_SECONDS)
        assert_same_outputs(InferRequest(other).infer(case.inputs), case.expected(), 1e-5)
    network.close()
    other.close()


class _LateToken(CancelToken):
    """Another thread has taken each hook when it is detached, and calls it later."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Callable[[], object]] = []

    def detach(self, hook: Callable[[], object]) -> bool:
        super().detach(hook)
        self.taken.append(hook)
        return False


def test_a_cancel_that_comes_as_a_run_ends_leaves_later_requests_alone(plugin: Plugin) -> None:
    case = networks.add()
    network = plugin.load_network(Load(case.network))
    ended, token = threading.Event(), _LateToken()
    network.submit(Job(case.inputs, lambda _: ended.set(), token=token))
    assert ended.wait(PATIENCE_SECONDS)
    token.taken[0]()  # that of the run, which ended first
    for _ in range(3):
        assert_same_outputs(InferRequest(network).infer(case.inputs), case.expected(), 1e-5)


def test_runs_one_after_the_other_share_their_options(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = networks.add()
    network = plugin.load_network(Load(case.network))
    options = Mock(side_effect=session.run_options)
    monkeypatch.setattr(session, "run_options", options)
    for _ in range(5):
        InferRequest(network).infer(case.inputs)
    options.assert_called_once()


def test_many_requests_on_one_session_do_not_mix(plugin: Plugin) -> None:
    network = load(plugin, "d (float[N] x) => (float[N] y) { y = Add(x, x) }")
    wrong: list[float] = []

    def work(value: float) -> None:
        given = np.full(8, value, np.float32)
        results = (infer(network, x=given)["y"] for _ in range(50))
        wrong.extend(value for result in results if (result != 2 * value).any())

    threads = [threading.Thread(target=work, args=(float(index),)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    network.close()


# -- failures --


def test_a_value_that_a_layer_does_not_take_names_the_layer(plugin: Plugin) -> None:
    network = load(plugin, "g (float[4] x, int64[1] i) => (float[1] y) { [pick] y = Gather(x, i) }")
    with pytest.raises(InvalidArgument, match=r"'pick' \(Gather\)") as caught:
        infer(network, x=np.ones(4, np.float32), i=np.array([9]))
    assert "onnxruntime_src" not in caught.value.message
    network.close()


def test_a_precision_that_is_changed_is_said(plugin: Plugin) -> None:
    half = "m (float16[N,4] x, float16[4,4] w) => (float16[N,4] y) { y = MatMul(x, w) }"
    network = load(plugin, half)
    (note,) = network.notes
    assert note.startswith("float16 layers are computed in float32")
    assert network.get_metric("NOTES") == [note]
    network.close()
    kept = load(plugin, half, {"INFERENCE_PRECISION_HINT": "f16"})
    assert kept.notes == ()
    kept.close()


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("n (float[2] x) => (float[2] y) { y = Neg(x) }", True),
        ("n (float[2] x, int64[2] i) => (float[2] y) { y = Gather(x, i) }", False),
    ],
)
def test_it_tells_whether_inputs_may_change_during_a_run(
    plugin: Plugin, text: str, may: bool
) -> None:
    assert load(plugin, text).inputs_may_change == may


def test_it_computes_into_the_room_of_a_request(plugin: Plugin) -> None:
    network = load(plugin, "n (float[2] x) => (float[2] y) { y = Neg(x) }")
    room = np.zeros(2, np.float32)
    ended = threading.Event()
    job = Job({"x": np.ones(2, np.float32)}, lambda _: ended.set())
    job.room = {"y": room}
    network.submit(job)
    assert ended.wait(PATIENCE_SECONDS)
    assert job.outputs["y"] is room
    np.testing.assert_array_equal(room, [-1, -1])
