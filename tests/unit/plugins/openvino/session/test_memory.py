"""OPENVINO writes each output into the memory that it was given, whatever computes the output."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.plugins.openvino.compiler import Compiler
from headrace.plugins.openvino.plugin import OpenVinoPlugin
from headrace.plugins.openvino.session import memory, requests
from headrace.plugins.openvino.session.session import Runtime
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import HeadraceError
from headrace.runtime.execution.job import Job
from headrace.runtime.network.network import Network
from headrace.runtime.network.values import Array
from headrace.testing.backend_cases.cases import BackendCase, collect
from headrace.testing.case import parse
from headrace.testing.services import services

SAMPLE = 120


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def plugin(runtime: Runtime) -> Iterator[Plugin]:
    with services() as offered:
        yield OpenVinoPlugin("OPENVINO", offered, {"NUM_STREAMS": "1"}, lambda: Compiler(runtime))


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
    network = plugin.load_network(Load(Network.from_bytes(parse(text).SerializeToString()), {}))
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
            network = plugin.load_network(Load(Network.from_bytes(model(case, sizes)), {}))
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
