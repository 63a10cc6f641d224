"""CUDA's own decisions, with GPUs on paper: the processors compute, by the same code otherwise."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

from headrace.plugins.cpu.backend.session import Provider
from headrace.plugins.cuda.backend.memory import PinnedMemory
from headrace.plugins.cuda.config import SCHEMA, auto_streams, provider
from headrace.plugins.cuda.running.bound_runs import bindable, memory_of
from headrace.runtime.config.schema import Range
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.services import Services
from headrace.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    UnsupportedLayers,
)
from headrace.runtime.execution.job import Job
from headrace.runtime.system.asker import Asker, asking
from headrace.testing import networks
from headrace.testing.case import network_of
from headrace.testing.compare import assert_same, assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services
from tests.support.paper_gpu import PaperCuda, PaperManagement, machine

FIXED = "fixed (float[2,3] x, float[2,3] y) => (float[2,3] z) { [sum] z = Add(x, y) }"


@pytest.fixture
def offered() -> Iterator[Services]:
    with services() as made:
        yield made


@pytest.fixture
def plugin(offered: Services) -> PaperCuda:
    return PaperCuda("CUDA", offered, {}, machine())


def load(plugin: PaperCuda, text: str, **config: str) -> ExecutableNetwork:
    return plugin.load_network(Load(network_of(text), config))


def infer(loaded: ExecutableNetwork, **inputs: Any) -> Mapping[str, Any]:
    return InferRequest(loaded).infer(inputs)


# -- what it says of itself --


def test_each_gpu_tells_what_it_is(plugin: PaperCuda) -> None:
    assert plugin.get_metric("AVAILABLE_DEVICES") == ["0", "1"]
    assert plugin.get_metric("DEVICE_TYPE") == "DISCRETE"
    second = {"DEVICE_ID": "1"}
    assert plugin.get_metric("FULL_DEVICE_NAME") == "NVIDIA H100"
    assert plugin.get_metric("FULL_DEVICE_NAME", second) == "Tesla T4"
    assert plugin.get_metric("DEVICE_UUID", second) == "GPU-bbbb-2"
    assert plugin.get_metric("DEVICE_ARCHITECTURE", second) == "sm_75"
    assert plugin.get_metric("OPTIMIZATION_CAPABILITIES", second) == ["FP32", "FP16", "FP64"]
    assert plugin.get_metric("GPU_DEVICE_TOTAL_MEM_SIZE", second) == 16 * 2**30
    assert plugin.get_metric("GPU_DEVICE_USED_MEM_SIZE", second) == 2 * 2**30
    assert plugin.get_metric("RANGE_FOR_STREAMS") == Range(1, 32)


def test_memory_is_what_the_driver_tells_or_else_the_weights(offered: Services) -> None:
    management = PaperManagement(taken=512)
    plugin = PaperCuda("CUDA", offered, {}, machine(management))
    loaded = plugin.load_network(Load(networks.mlp().network))
    assert plugin.memory_bytes("0") == 512
    management.taken = None
    assert plugin.memory_bytes("0") == loaded.network.weight_bytes
    assert plugin.memory_bytes("1") == 0


# -- configuration --


def options(device_id: str = "0", **config: str) -> list[tuple[str, dict[str, str]]]:
    chosen = provider(SCHEMA.resolve(config), device_id)
    return [(each.name, dict(each.options)) for each in (chosen, *chosen.behind)]


def test_the_provider_computes_in_float32_on_the_gpu_that_is_asked_for() -> None:
    assert options("1") == [("CUDAExecutionProvider", {"device_id": "1", "use_tf32": "0"})]
    assert options(TF32="YES")[0][1]["use_tf32"] == "1"


def test_a_limit_on_memory_is_used_to_the_full() -> None:
    _, found = options(GPU_MEMORY_LIMIT="1000000")[0]
    assert found["gpu_mem_limit"] == "1000000"
    assert found["arena_extend_strategy"] == "kSameAsRequested"


def test_tensorrt_leaves_to_cuda_what_it_cannot_run() -> None:
    first, second = options("1", EXECUTION_PROVIDER="TENSORRT", INFERENCE_PRECISION_HINT="f16")
    assert first == ("TensorrtExecutionProvider", {"device_id": "1", "trt_fp16_enable": "True"})
    assert second[0] == "CUDAExecutionProvider"
    assert options(EXECUTION_PROVIDER="TENSORRT")[0][1]["trt_fp16_enable"] == "False"


def test_tensorrt_that_is_missing_is_refused_with_the_reason(plugin: PaperCuda) -> None:
    with pytest.raises(FailedPrecondition, match="TensorRT is missing") as caught:
        load(plugin, FIXED, EXECUTION_PROVIDER="TENSORRT")
    assert caught.value.field == "config['EXECUTION_PROVIDER']"
    with pytest.raises(FailedPrecondition, match="TensorRT is missing"):
        plugin.set_config({"EXECUTION_PROVIDER": "TENSORRT"})


def test_tensorrt_records_nothing(offered: Services) -> None:
    plugin = PaperCuda("CUDA", offered, {}, machine(tensorrt=""))
    with pytest.raises(InvalidArgument, match="CUDA_GRAPH is for"):
        load(plugin, FIXED, EXECUTION_PROVIDER="TENSORRT", CUDA_GRAPH="YES")


def test_a_network_goes_to_the_gpu_that_is_asked_for(plugin: PaperCuda) -> None:
    loaded = load(plugin, FIXED, DEVICE_ID="1")
    assert loaded.place.device == "CUDA.1"
    assert plugin.asked[-1].options["device_id"] == "1"
    with pytest.raises(NotFound, match="DEVICE_ID"):
        load(plugin, FIXED, DEVICE_ID="2")


@pytest.mark.parametrize(
    ("config", "streams"),
    [
        ({}, 2),
        ({"PERFORMANCE_HINT": "LATENCY"}, 1),
        ({"PERFORMANCE_HINT_NUM_REQUESTS": "1"}, 1),
        ({"PERFORMANCE_HINT_NUM_REQUESTS": "64"}, 2),
    ],
)
def test_streams_do_not_follow_the_processors(config: dict[str, str], streams: int) -> None:
    assert auto_streams(SCHEMA.resolve(config)) == streams


@pytest.mark.parametrize(("config", "at_once"), [({}, 1), ({"NUM_STREAMS": "2"}, 2)])
def test_a_recorded_network_runs_one_request_at_once_unless_told_otherwise(
    plugin: PaperCuda, config: dict[str, str], at_once: int
) -> None:
    loaded = load(plugin, FIXED, CUDA_GRAPH="YES", **config)
    assert loaded.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == at_once


def test_a_gpu_that_the_provider_cannot_use_is_no_lack_of_kernels(offered: Services) -> None:
    class Unusable(PaperCuda):
        def _cuda(self, *_: Any, **__: Any) -> Provider:
            return Provider("CoreMLExecutionProvider")  # which ONNX Runtime goes without

    plugin = Unusable("CUDA", offered, {}, machine())
    with pytest.raises(Unavailable, match="cannot load its CoreMLExecutionProvider"):
        load(plugin, FIXED)


# -- strangers --

STRANGER = Asker("somebody", trusted=False)
INVERSE = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
i (float[2,2] x) => (float[2,2] y) { [inverse] y = com.microsoft.Inverse(x) }"""


def test_a_stranger_s_network_is_compiled_first_where_nobody_is_served(plugin: PaperCuda) -> None:
    tried: list[Load] = []
    plugin.trials = SimpleNamespace(load=tried.append)
    with asking(STRANGER):
        load(plugin, FIXED)
    assert len(tried) == 1
    load(plugin, FIXED)
    assert len(tried) == 1


def test_a_stranger_gets_no_operators_whose_inputs_are_not_checked(plugin: PaperCuda) -> None:
    given = network_of(parse_model(INVERSE))
    with asking(STRANGER):
        found = plugin.query_network(given, {})
        with pytest.raises(UnsupportedLayers, match="that such networks share"):
            plugin.load_network(Load(given))
    assert [each.layer for each in found.unsupported] == ["inverse"]
    assert not plugin.query_network(given, {}).unsupported


# -- runs --


@pytest.mark.parametrize(
    "case", [networks.add(), networks.mlp(), networks.image()], ids=lambda case: case.name
)
def test_staged_runs_compute_what_is_expected(plugin: PaperCuda, case: Any) -> None:
    loaded = plugin.load_network(Load(case.network))
    for _ in range(2):
        assert_same_outputs(InferRequest(loaded).infer(case.inputs), case.expected(), 1e-5)


@pytest.mark.parametrize("config", [{}, {"CUDA_GRAPH": "YES"}], ids=["staged", "recorded"])
def test_each_request_has_outputs_of_its_own(plugin: PaperCuda, config: dict[str, str]) -> None:
    loaded = load(plugin, FIXED, **config)

    def run(number: int) -> Any:
        x = np.full((2, 3), number, np.float32)
        return infer(loaded, x=x, y=x)["z"]

    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(run, range(32)))
    for number, output in enumerate(outputs):
        assert_same(output, np.full((2, 3), 2 * number, np.float32), 0.0)


def test_inputs_of_any_size_and_layout_are_staged(plugin: PaperCuda) -> None:
    loaded = load(plugin, "any (float[N,M] x) => (float[N,M] y) { y = Neg(x) }")
    for x in (np.ones((2, 3)), np.ones((0, 3)), np.ones((9, 200)), np.ones((4, 4)).T[::2]):
        x = x.astype(np.float32, copy=False)
        assert_same(infer(loaded, x=x)["y"], -x, 0.0)


def test_an_output_of_another_shape_than_it_is_said_to_have_comes_as_it_is(
    plugin: PaperCuda,
) -> None:
    loaded = load(plugin, "m (float[N] x) => (float[1] y) { y = Neg(x) }")
    x = np.array([1, 2, 3], np.float32)
    assert_same(infer(loaded, x=x)["y"], -x, 0.0)


def test_types_that_numpy_lacks_pass_as_their_bytes(plugin: PaperCuda) -> None:
    text = """b (float[N] x) => (bfloat16[N] y, bfloat16[2] z) {
        y = Cast<to=16>(x)
        c = Constant<value_floats=[1.0,2.0]>()
        z = Cast<to=16>(c)
    }"""
    loaded = load(plugin, text)
    assert bindable(loaded.network)
    outputs = infer(loaded, x=np.array([1.5, -2], np.float32))
    assert_same(outputs["y"], np.array([1.5, -2], ml_dtypes.bfloat16), 0.0)
    assert_same(outputs["z"], np.array([1, 2], ml_dtypes.bfloat16), 0.0)


def test_what_is_no_bytes_runs_as_on_processors(plugin: PaperCuda) -> None:
    loaded = load(plugin, "s (string[N] x) => (string[N] y) { y = Identity(x) }")
    assert not bindable(loaded.network)
    assert infer(loaded, x=np.array(["a", "b"], object))["y"].tolist() == ["a", "b"]


def test_only_wanted_outputs_come_back(plugin: PaperCuda) -> None:
    text = "two (float[N] x) => (float[N] y, float[N] z) { y = Neg(x) z = Abs(x) }"
    loaded = load(plugin, text)
    done = threading.Event()
    x = np.array([-3], np.float32)
    job = Job({"x": x}, lambda _: done.set(), output_names=("z",))
    loaded.submit(job)
    done.wait()
    (output,) = job.outputs.items()
    assert output == ("z", np.array([3], np.float32))


def test_recorded_values_lie_where_the_provider_looks_for_them() -> None:
    where, asked = memory_of(1), onnxruntime.OrtDevice.make("cuda", 1)
    found = (where.device_type(), where.device_id(), where.vendor_id())
    assert found == (asked.device_type(), 1, asked.device_vendor_id())
    assert where.vendor_id() == 0x10DE  # NVIDIA's number among makers of PCI devices


def test_a_recorded_network_has_a_session_for_each_stream(plugin: PaperCuda) -> None:
    load(plugin, FIXED, CUDA_GRAPH="YES")
    recording = [each for each in plugin.asked if each.options.get("enable_cuda_graph") == "1"]
    assert len(recording) == 1


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("n (float[N] x) => (float[N] y) { y = Neg(x) }", "x, y"),
        ("s (string[2] x) => (string[2] y) { y = Identity(x) }", "x, y"),
    ],
)
def test_what_cannot_be_recorded_is_refused(plugin: PaperCuda, text: str, port: str) -> None:
    with pytest.raises(InvalidArgument, match=f"fixed shapes, which {port} are not"):
        load(plugin, text, CUDA_GRAPH="YES")


# -- pinned memory --


class Runtime:
    """CUDA's runtime as far as it is asked for memory, of which it has `size` bytes."""

    def __init__(self, size: int) -> None:
        self._memory = (ctypes.c_uint8 * size)()
        self._size = size
        self.freed: list[int | None] = []

    def cudaSetDevice(self, number: ctypes.c_int) -> int:
        self.device = number.value
        return 0

    def cudaHostAlloc(self, place: Any, size: ctypes.c_size_t, _flags: ctypes.c_uint) -> int:
        if size.value > self._size:
            return 2
        place._obj.value = ctypes.addressof(self._memory)
        return 0

    def cudaFreeHost(self, pointer: ctypes.c_void_p) -> int:
        self.freed.append(pointer.value)
        return 0


def test_pinned_memory_goes_back_with_its_last_view() -> None:
    runtime = Runtime(64)
    memory = PinnedMemory(runtime, 1).allocate(64)
    view = memory[8:16].view(np.float32)
    view[:] = 1.5
    del memory
    gc.collect()
    assert (runtime.freed, runtime.device, view.tolist()) == ([], 1, [1.5, 1.5])
    del view
    gc.collect()
    assert len(runtime.freed) == 1


def test_no_more_pinned_memory_is_an_error_that_says_how_much() -> None:
    with pytest.raises(ResourceExhausted, match=r"no 65 bytes of pinned memory \(CUDA error 2\)"):
        PinnedMemory(Runtime(64), 0).allocate(65)


# -- indices --


@pytest.mark.parametrize("profile", [False, True])
def test_an_index_out_of_bounds_never_reaches_the_gpu(plugin: PaperCuda, profile: bool) -> None:
    """Its kernels give zeros, or what lies beside the data."""
    loaded = load(plugin, "pick (float[5] x, int64[k] at) => (float[k] y) { y = Gather(x, at) }")
    request = InferRequest(loaded)
    request.start_async({"x": np.zeros(5, np.float32), "at": np.array([5])}, profile=profile)
    with pytest.raises(InvalidArgument, match="out of bounds"):
        request.result()


def test_indices_that_neither_kernel_nor_run_checks_are_refused(plugin: PaperCuda) -> None:
    picked = "at = Add(i, i) y = GatherElements(x, at)"
    with pytest.raises(UnsupportedLayers, match="nobody checks them"):
        load(plugin, f"pick (float[5] x, int64[k] i) => (float[k] y) {{ {picked} }}")
