"""OPENVINO writes each output into the memory that it was given, whatever computes the output."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from headrace.plugins.openvino.session import memory, requests, tensors
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Array
from headrace.testing.backend_cases.cases import BackendCase, collect
from headrace.testing.case import parse

SAMPLE = 40
LARGE = "f (float[{0}] x) => (float[{0}] y, float[{0}] z) {{ y = Neg(x)\n z = Abs(x) }}"


def load(plugin: Plugin, model: onnx.ModelProto | bytes) -> ExecutableNetwork:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return plugin.load_network(Load(Network.from_bytes(data), {"NUM_STREAMS": "1"}))


def run(network: ExecutableNetwork, inputs: dict[str, Any], room: Any = None) -> dict[str, Any]:
    settled = threading.Event()
    names = tuple(port.name for port in network.outputs)
    job = Job(dict(inputs), lambda _: settled.set(), output_names=names)
    job.room = room
    network.submit(job)
    assert settled.wait(60)
    if job.error is not None:
        raise job.error
    return dict(job.outputs)


NOTHING = {
    "a largest": "y = Max(x)",
    "a least": "y = Min(x)",
    "a sum": "y = Sum(x)",
    "a mean": "y = Mean(x)",
    "two": "a = Max(x) y = Sum(a)",
    "names": "a = Max(x) b = Identity(a) y = Dropout(b)",
    "a name": "y = Identity(x)",
    "a cast": "y = Cast<to = 1>(x)",
    "a shape": "to = Constant<value = int64[1] {-1}>() y = Reshape(x, to)",
    "an order": "y = Transpose<perm = [0]>(x)",
    "one part": "y = Concat<axis = 0>(x)",
    "no bounds": "y = Clip(x)",
    "a zero": "zero = Constant<value = float {0.0}>() y = Add(x, zero)",
    "a power": "one = Constant<value = float {1.0}>() y = Pow(x, one)",
}


@pytest.mark.parametrize("size", ["7", "20000", "N"])
@pytest.mark.parametrize("what", NOTHING)
def test_an_output_that_is_an_input_is_a_copy(plugin: Plugin, what: str, size: str) -> None:
    ports = f"(float[{size}] x) => (float[{size}] y, float[{size}] z)"
    text = f"f {ports} {{ {NOTHING[what]} z = Neg(x) }}"
    network = load(plugin, parse(text))
    kept = []
    for turn in range(4):
        x = np.arange(20_000 if size == "N" else int(size), dtype=np.float32) + turn
        room = {"y": np.full_like(x, -99), "z": np.full_like(x, -99)} if turn > 1 else None
        outputs = run(network, {"x": x}, room)
        assert not np.may_share_memory(outputs["y"], x)
        kept.append((x.copy(), outputs))
        x[:] = -1  # the caller's
        for given, found in kept:
            np.testing.assert_array_equal(found["y"], given)
            np.testing.assert_array_equal(found["z"], -given)


def test_a_job_may_have_room_for_its_large_outputs(plugin: Plugin) -> None:
    network = load(plugin, parse(LARGE.format("100000")))
    x = np.ones(100000, np.float32)
    room: dict[str, Array] = {"y": np.zeros_like(x), "z": np.zeros(7, np.float32)}
    before = run(network, {"x": x}, room)
    assert before["y"] is room["y"]
    assert before["z"] is not room["z"]  # it does not fit there
    after = run(network, {"x": 2 * x}, None)  # it has no room, and leaves the other alone
    for outputs, factor in ((before, 1), (after, 2)):
        np.testing.assert_array_equal(outputs["y"], -factor * x)
        np.testing.assert_array_equal(outputs["z"], factor * x)
    assert not room["z"].any()


def test_outputs_without_fixed_shape_use_the_room_if_their_shape_is_certain(
    plugin: Plugin,
) -> None:
    network = load(plugin, parse(LARGE.format("N")))
    kept = []
    used = []
    sizes = (20_000, 20_000, 20_000, 30_000, 30_000, 9_000, 9_000, 5, 20_000, 20_000)
    for turn, size in enumerate(sizes):
        x = np.full(size, turn + 1, np.float32)
        room = {name: np.full(20_000, -99, np.float32) for name in ("y", "z")}
        outputs = run(network, {"x": x}, room if turn != 5 else None)
        used.append(outputs["y"] is room["y"])
        kept.append((x, outputs))
        for given, found in kept:
            np.testing.assert_array_equal(found["y"], -given)
            np.testing.assert_array_equal(found["z"], given)
    assert used == [*(False, True, True), *[False] * 6, True]


def test_outputs_whose_shape_depends_on_values_do_not_use_the_room(plugin: Plugin) -> None:
    text = "f (float[N] x) => (int64[1,M] y, float[N] z) { y = NonZero(x)\n z = Abs(x) }"
    network = load(plugin, parse(text))
    for count in (9_000, 9_000, 8_000, 9_000):
        x = np.zeros(20_000, np.float32)
        x[:count] = 1
        room: dict[str, Array] = {
            "y": np.full((1, 9_000), -99, np.int64),
            "z": np.full(20_000, -99, np.float32),
        }
        outputs = run(network, {"x": x}, room)
        assert outputs["y"].shape == (1, count)
        assert outputs["y"] is not room["y"]
        np.testing.assert_array_equal(outputs["z"], x)


@pytest.mark.parametrize("dtype", sorted(tensors.PASSED - {ir.DataType.DOUBLE}))
def test_small_inputs_that_nobody_may_write_to_are_new_each_time(
    plugin: Plugin, dtype: ir.DataType
) -> None:
    """They keep their memory from one request to the next."""
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph(
        [node], "f", [value("x", int(dtype), ["N"])], [value("y", int(dtype), ["N"])]
    )
    opsets = [onnx.helper.make_opsetid("", 21)]
    network = load(plugin, onnx.helper.make_model(graph, ir_version=10, opset_imports=opsets))
    for turn, (size, writable) in enumerate(((4, 0), (4, 0), (4, 1), (4, 0), (7, 0), (4, 0))):
        x = np.array([(turn + at) % 2 + 1 for at in range(size)]).astype(dtype.numpy())
        x.flags.writeable = bool(writable)
        np.testing.assert_array_equal(run(network, {"x": x})["y"], x)


@pytest.fixture(scope="module")
def cases() -> list[BackendCase]:
    found = [each for each in collect() if each.kind == "node" and not each.random]
    return random.Random(3).sample(found, SAMPLE)


@pytest.mark.parametrize("sizes", ["fixed", "free"])
def test_cases_of_onnx_compute_into_memory_that_they_are_given(
    plugin: Plugin, cases: list[BackendCase], sizes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every output counts as large, so each gets its memory: new memory, or the job's room."""
    for module in (memory, requests):
        monkeypatch.setattr(module, "LARGE_BYTES", 1)
    used = 0
    for case in cases:
        try:
            network = load(plugin, model(case, sizes))
            inputs, _ = case.data_sets[0]
            first = {name: value.copy() for name, value in run(network, inputs, {"": None}).items()}
        except HeadraceError:
            continue  # it is refused
        for _ in range(2):
            room = {name: other(value) for name, value in first.items()}
            again = run(network, inputs, room)
            used += sum(again[name] is room[name] for name in again)
            for name, value in first.items():
                same = (again[name].shape, again[name].tobytes()) == (value.shape, value.tobytes())
                assert same, (case.name, name)
    assert used > 20


def model(case: BackendCase, sizes: str) -> bytes:
    """The case's network, with inputs and outputs of any size."""
    found = onnx.load_from_string(case.model)
    if sizes == "free":
        for number, value in enumerate((*found.graph.input, *found.graph.output)):
            for axis, size in enumerate(value.type.tensor_type.shape.dim):
                size.dim_param = f"d{number}_{axis}"
    return found.SerializeToString()


def other(value: Array) -> Array:
    """Memory of the same form with other bytes."""
    inverted = bytearray(byte ^ 0xFF for byte in value.tobytes())
    return np.ndarray(value.shape, value.dtype, inverted)
