"""OPENVINO's infer requests: whose memory is whose, how a run ends, what a failed one spoils."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from headrace.plugins.openvino.failures import load_failure, readable, run_failure
from headrace.plugins.openvino.graph.checkpoint import add_checkpoints
from headrace.plugins.openvino.session import tensors
from headrace.plugins.openvino.session.session import Runtime
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    InvalidModel,
    ResourceExhausted,
    UnsupportedLayers,
)
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Array, Value
from headrace.testing import networks
from headrace.testing.case import parse
from headrace.testing.infer_request import InferRequest

LARGE = "f (float[{0}] x) => (float[{0}] y, float[{0}] z) {{ y = Neg(x)\n z = Abs(x) }}"


def host(value: Value) -> Array:
    assert isinstance(value, np.ndarray)
    return value


def load(plugin: Plugin, text: str, **config: str) -> ExecutableNetwork:
    return plugin.load_network(Load(Network.from_bytes(parse(text).SerializeToString()), config))


# -- tensors --


def test_a_read_only_array_is_taken_where_it_lies() -> None:
    given = np.frombuffer(bytes(64), np.float32)
    taken, kept = tensors.tensor(given, ir.DataType.FLOAT)
    assert kept is given
    assert np.shares_memory(taken.data, given)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(np.longlong, ir.DataType.INT64), (np.ulonglong, ir.DataType.UINT64)]
)
def test_both_types_of_64_bits_that_numpy_has_are_taken_where_they_lie(
    kind: type[np.generic], dtype: ir.DataType
) -> None:
    """ONNX Runtime answers with these, and another subgraph of HETERO's hands them over."""
    given = np.array([3, 4], kind)
    for array in (given, np.frombuffer(given.tobytes(), kind)):
        taken, kept = tensors.tensor(array, dtype)
        assert kept is array
        assert taken.data.tolist() == [3, 4]
        assert np.shares_memory(taken.data, array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.frombuffer(b"\0" + bytes(16), np.uint8)[1:].view(np.float32),
    ],
    ids=["strided", "unaligned"],
)
def test_what_does_not_lie_as_it_must_is_copied(array: np.ndarray[Any, Any]) -> None:
    taken, kept = tensors.tensor(array, ir.DataType.FLOAT)
    assert not np.shares_memory(kept, array)
    np.testing.assert_array_equal(taken.data, array)


@pytest.mark.parametrize("dtype", sorted(tensors.PASSED))
def test_elements_of_every_type_that_is_passed_stay_the_same(dtype: ir.DataType) -> None:
    given = np.array([[1, 2], [2, 1]]).astype(dtype.numpy())
    given.flags.writeable = False
    taken, _ = tensors.tensor(given, dtype)
    back = tensors.array(taken, dtype)
    assert back.dtype == given.dtype
    np.testing.assert_array_equal(back, given)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_nothing_at_all_are_tensors(shape: tuple[int, ...]) -> None:
    given = np.zeros(shape, np.int64)
    given.flags.writeable = False
    assert tuple(tensors.tensor(given, ir.DataType.INT64)[0].shape) == shape


# -- memory --


@pytest.mark.parametrize("size", ["8", "100000", "N"])
def test_each_job_has_memory_of_its_own(plugin: Plugin, size: str) -> None:
    count = 100000 if size == "N" else int(size)
    request = InferRequest(load(plugin, LARGE.format(size)))
    kept = [request.infer({"x": np.full(count, turn, np.float32)}) for turn in range(4)]
    for turn, outputs in enumerate(kept):
        np.testing.assert_array_equal(outputs["y"], np.full(count, -turn, np.float32))
        host(outputs["z"])[:] = -1  # the caller's


def test_an_output_that_is_not_wanted_is_not_written_over_another(plugin: Plugin) -> None:
    request = InferRequest(load(plugin, LARGE.format("100000")))
    x = np.ones(100000, np.float32)
    both = request.infer({"x": x})
    request.start_async({"x": 2 * x}, output_names=("y",))
    assert set(request.result(60)) == {"y"}
    np.testing.assert_array_equal(both["z"], x)


# -- shapes --


@pytest.mark.parametrize(
    "text",
    [
        "f (float[2] x) => (float[2,1] y) { y = Neg(x) }",
        "f (float[2,N] x) => (float[3,N] y) { t = Neg(x) y = Relu(t) }",
    ],
)
def test_an_output_of_another_shape_than_the_network_says_is_refused(
    plugin: Plugin, text: str
) -> None:
    network = Network.from_bytes(parse(text).SerializeToString())
    assert plugin.query_network(network, {}).unsupported
    with pytest.raises(UnsupportedLayers, match="'y' would have the shape"):
        plugin.load_network(Load(network))


@pytest.mark.parametrize("layer", ["Cast<to = 10>(x)", "EyeLike<dtype = 6>(x)"])
def test_so_is_one_of_another_type(plugin: Plugin, layer: str) -> None:
    text = f"f (float[2,2] x) => (float[2,2] y) {{ y = {layer} }}"
    network = Network.from_bytes(parse(text).SerializeToString())
    assert plugin.query_network(network, {}).unsupported
    with pytest.raises(UnsupportedLayers, match="'y' would have elements of"):
        plugin.load_network(Load(network))


def test_so_is_a_returned_initialiser_that_openvino_takes_for_a_scalar(plugin: Plugin) -> None:
    model = parse("f (float[1] x) => (float[1] y, float[1,0] c) { y = Neg(x) }")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 0), np.float32), "c"))
    with pytest.raises(UnsupportedLayers, match="'c' would have the shape"):
        plugin.load_network(Load(Network.from_bytes(model.SerializeToString())))


# -- bounds of slices --

INT64 = np.iinfo(np.int64)
SLICE = """f (float[4] x, int64[1] first, int64[1] last, int64[1] step) => (float[N] y) {{
    {0} axis = Constant<value = int64[1] {{0}}>() y = Slice(x, first, last, axis, step)
}}"""


@pytest.mark.parametrize(
    ("first", "last", "step", "y"),
    [
        (1, INT64.max, 1, [2, 3, 4]),
        (INT64.max, INT64.min, -1, [4, 3, 2, 1]),
        (INT64.min, INT64.max, 2, [1, 3]),
        (0, 4, INT64.max, [1]),
        (3, 0, INT64.min, [4]),
    ],
)
def test_a_bound_of_a_slice_may_lie_beyond_32_bits(
    plugin: Plugin, first: int, last: int, step: int, y: list[int]
) -> None:
    given = {"first": np.array([first]), "last": np.array([last]), "step": np.array([step])}
    request = InferRequest(load(plugin, SLICE.format("")))
    outputs = request.infer({"x": np.arange(1, 5, dtype=np.float32), **given})
    assert host(outputs["y"]).tolist() == y


@pytest.mark.parametrize("reader", ["t = Neg(last)", ""])
def test_but_not_where_something_else_reads_it(plugin: Plugin, reader: str) -> None:
    output = ", int64[1] t" if reader else ", int64[1] last"
    text = SLICE.format(reader).replace("(float[N] y)", f"(float[N] y{output})")
    request = InferRequest(load(plugin, text))
    one = np.array([1])
    x = np.ones(4, np.float32)
    with pytest.raises(InvalidArgument, match="beyond int32"):
        request.infer({"x": x, "first": one, "last": np.array([INT64.max]), "step": one})


# -- errors --


def test_messages_lose_code_locations() -> None:
    text = (
        "Exception from src/inference/src/cpp/core.cpp:117:\n"
        "Exception from src/inference/src/dev/plugin.cpp:54:\n"
        "Check '!shape.rank().is_dynamic()' failed at src/plugins/intel_cpu/src/node.cpp:108:\n"
        "the rank is unknown\n\n"
    )
    assert readable(RuntimeError(text)) == "the rank is unknown"


def test_messages_of_shape_inference_name_the_layer_alone() -> None:
    text = (
        "Check 'merge(output_shape, 1)' failed at src/core/shape_inference/eltwise.hpp:26:\n"
        "While validating node 'opset1::Add z (opset1::Parameter y[0]:f32[3]) -> (f32[?,2])' with "
        "friendly_name 'z':\nArgument shapes are inconsistent.\n"
    )
    message = str(run_failure(RuntimeError(text)))
    assert message.endswith("values: layer 'z': Argument shapes are inconsistent")


def test_errors_are_told_apart_by_stage() -> None:
    assert isinstance(load_failure(RuntimeError("x")), InvalidModel)
    assert isinstance(load_failure(RuntimeError("std::bad_alloc")), ResourceExhausted)
    assert isinstance(run_failure(RuntimeError("x")), InvalidArgument)
    assert isinstance(run_failure(MemoryError()), ResourceExhausted)
    for error in (Internal("x"), KeyError("x")):
        assert run_failure(error) is error


@pytest.mark.parametrize(
    "text",
    [
        "std::bad_alloc",
        "[CPU] Broadcast node with name 'y' Failed to allocate 1073741824 bytes of memory",
        "[CPU] could not allocate memory",
        "[GPU] out of memory",
    ],
)
def test_no_memory_is_resource_exhausted_and_no_fault_of_the_values(text: str) -> None:
    assert isinstance(run_failure(RuntimeError(text)), ResourceExhausted)
    assert isinstance(load_failure(RuntimeError(text)), ResourceExhausted)


def test_a_request_whose_shapes_take_more_than_there_is_is_told_so(plugin: Plugin) -> None:
    network = load(plugin, "f (int64[4] s) => (float[A,B,C,D] y) { y = ConstantOfShape(s) }")
    request, beyond_all_addresses = InferRequest(network), np.array([2**12, 2**12, 2**11, 2**11])
    with pytest.raises(ResourceExhausted):
        request.infer({"s": beyond_all_addresses})
    assert host(request.infer({"s": np.array([1, 1, 1, 2])})["y"]).shape == (1, 1, 1, 2)


# -- cancelling --


LOOP = """f (float[{0}] x, int64 times) => (float[M] z, float[{0}] y) {{
    n = Neg(x)
    z = Concat<axis = 0>(n, n)
    yes = Constant<value = bool {{1}}>()
    y = Loop(times, yes, n) <body = b (int64 i, bool go, float[{0}] v)
        => (bool more, float[{0}] next) {{ more = Identity(go) next = Neg(v) }}>
}}"""


def right(network: ExecutableNetwork, count: int) -> None:
    x = np.arange(count, dtype=np.float32)
    found = InferRequest(network).infer({"x": x, "times": np.array(1)})
    np.testing.assert_array_equal(found["z"], -np.concatenate([x, x]))
    np.testing.assert_array_equal(found["y"], x)


@pytest.mark.parametrize(("streams", "threads"), [("1", "2"), ("2", "1")])
def test_a_run_without_loops_ends_between_layers(
    plugin: Plugin, streams: str, threads: str
) -> None:
    size, layers = 2048, 600  # minutes of one processor
    lines = (
        f"v{i + 1} = Tanh(p{i})\n p{i + 1} = MatMul(v{i + 1}, v{i + 1})" for i in range(layers)
    )
    body = "\n".join(["p0 = Identity(x)", *lines, f"y = Identity(p{layers})"])
    text = f"f (float[{size}, {size}] x) => (float[{size}, {size}] y) {{ {body} }}"
    network = load(plugin, text, NUM_STREAMS=streams, INFERENCE_NUM_THREADS=threads)
    request = InferRequest(network)
    before = time.process_time()
    request.start_async({"x": np.ones((size, size), np.float32)})
    _until(lambda: time.process_time() - before > 0.5)  # it computes
    request.cancel()
    with pytest.raises(Cancelled):
        request.result(60)


def test_a_network_without_loops_gets_no_checkpoints() -> None:
    model = networks.branch().network.model
    assert add_checkpoints(model) == (model, None)


# -- what a failed run spoils --


def test_after_a_failed_reshape_the_same_one_fails_again(plugin: Plugin) -> None:
    network = load(plugin, "f (float[N] x, int64[2] p) => (float[A,B] y) { y = Reshape(x, p) }")
    x, good, bad = np.ones(4, np.float32), np.array([2, 2]), np.array([3, 2])
    requests = [InferRequest(network) for _ in range(12)]
    for turn, request in enumerate(requests):
        request.start_async({"x": x, "p": bad if turn % 3 else good})
    for turn, request in enumerate(requests):
        if turn % 3:
            with pytest.raises(InvalidArgument):
                request.result(60)
        else:
            assert host(request.result(60)["y"]).shape == (2, 2)


def test_a_request_that_does_not_fit_spoils_no_later_one(plugin: Plugin) -> None:
    """OpenVINO alone says to the last of these what it said to the one before."""
    text = "f (float[3,1,5] x, float[N] y) => (float[A,B,C] z) { z = Add(x, y) }"
    network = plugin.load_network(
        Load(Network.from_bytes(parse(text).SerializeToString()), {"NUM_STREAMS": "1"})
    )
    request, x = InferRequest(network), np.ones((3, 1, 5), np.float32)
    for size, fits in ((5, True), (33, False), (3, False), (5, True)):
        inputs: dict[str, Any] = {"x": x, "y": np.ones(size, np.float32)}
        if fits:
            assert host(request.infer(inputs)["z"]).shape == (3, 1, 5)
        else:
            with pytest.raises(InvalidArgument):
                request.infer(inputs)


class Compiles:
    """Counts how often a network is compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        compiled = Runtime.compile

        def compile_(*arguments: Any) -> Any:
            self.count += 1
            return compiled(*arguments)

        monkeypatch.setattr(Runtime, "compile", compile_)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Compiles:
    return Compiles(monkeypatch)


def test_requests_of_shapes_that_do_not_fit_cost_one_compile_in_all(
    plugin: Plugin, compiles: Compiles
) -> None:
    text = "f (float[N,2] x, float[M,2] y) => (float[A,2] z) { n = Neg(x) z = Add(n, y) }"
    request, x = InferRequest(load(plugin, text)), np.ones((3, 2), np.float32)
    for size in (2, 4, 2, 5, 6, 7):
        with pytest.raises(InvalidArgument, match="does not take these values"):
            request.infer({"x": x, "y": np.ones((size, 2), np.float32)})
        for fits in (1, 3):
            good = request.infer({"x": x, "y": np.ones((fits, 2), np.float32)})
            assert host(good["z"]).tolist() == [[0.0, 0.0]] * 3
    assert compiles.count == 2


def test_a_divisor_that_follows_from_a_size_of_0_is_the_callers_fault(plugin: Plugin) -> None:
    """OpenVINO raises another error than usual while it infers the shapes."""
    text = (
        "f (float[N,M] x, float[K,L] y) => (float[A,B] z) { a = Shape<end = 1>(x)"
        " b = Shape<end = 1>(y) c = Div(a, b) d = Concat<axis = 0>(c, b) z = Expand(y, d) }"
    )
    request, x = InferRequest(load(plugin, text)), np.ones((2, 3), np.float32)
    with pytest.raises(InvalidArgument, match="division by zero"):
        request.infer({"x": x, "y": np.ones((0, 1), np.float32)})
    assert host(request.infer({"x": x, "y": np.ones((1, 1), np.float32)})["z"]).shape == (2, 1)


def test_neither_do_shapes_that_a_request_gives_as_values(
    plugin: Plugin, compiles: Compiles
) -> None:
    network = load(plugin, "f (float[N] x, int64[2] p) => (float[A,B] y) { y = Reshape(x, p) }")
    request, x = InferRequest(network), np.ones(4, np.float32)
    for bad in ([3, 2], [5, 1], [3, -1], [3, 2]):
        with pytest.raises(InvalidArgument):
            request.infer({"x": x, "p": np.array(bad)})
        for good in ([2, 2], [-1, 1], [1, 4]):
            assert host(request.infer({"x": x, "p": np.array(good)})["y"]).size == 4
    assert compiles.count == 2


def test_what_the_guards_find_costs_no_compile(plugin: Plugin, compiles: Compiles) -> None:
    network = load(plugin, "f (float[N] x, int64[M] i) => (float[M] y) { y = Gather(x, i) }")
    request = InferRequest(network)
    for index in (3, 4, 5):
        with pytest.raises(InvalidArgument, match="out of bounds"):
            request.infer({"x": np.ones(3, np.float32), "i": np.array([index])})
    assert compiles.count == 1


IN_A_LOOP = (
    "f (float[N] x, float[M] y) => (float[A] z) { n = Constant<value = int64 {2}>()"
    " t = Constant<value = bool {1}>() z = Loop(n, t, x)"
    " <body = a (int64 i, bool d, float[C] k) => (bool e, float[D] m)"
    " { e = Identity(d) m = Add(k, y) }> }"
)


def test_openvino_alone_does_not_notice_the_second_time(runtime: Runtime) -> None:
    """Once this fails, `pool` is not needed any more."""
    text = "f (float[4] x, int64[2] p) => (float[A,B] y) { y = Reshape(x, p) }"
    model = Network.from_bytes(parse(text).SerializeToString()).model
    request = runtime.compile(runtime.convert(model), "CPU", {}).create_infer_request()
    x, bad = np.ones(4, np.float32), np.array([3, 2])
    request.infer([x, np.array([2, 2])])
    with pytest.raises(RuntimeError):
        request.infer([x, bad])
    assert request.infer([x, bad])[0].shape == (2, 2)


def _until(condition: Any) -> None:
    clock, end = threading.Event(), time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        clock.wait(0.001)
