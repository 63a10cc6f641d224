"""What OpenVINO has compiled for one tuple of shapes: whose memory is whose, and how a run ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from headrace.plugins.openvino.backend import tensors
from headrace.runtime.errors import Cancelled, InvalidArgument, InvalidModel, UnsupportedLayers
from headrace.runtime.execution.job import Job
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.plugins.openvino.backend.conftest import Compile, run

LARGE = "f (float[N] x) => (float[N] y, float[N] z) { y = Neg(x)\n z = Abs(x) }"
BIG = np.ones(100_000, np.float32)


def test_each_run_has_memory_of_its_own(compile_for: Compile) -> None:
    for x in (np.ones(8, np.float32), BIG):
        compilation = compile_for(LARGE, {"x": x})
        kept = [run(compilation, {"x": x * turn}, "y", "z") for turn in range(4)]
        for turn, outputs in enumerate(kept):
            np.testing.assert_array_equal(outputs["y"], -turn * x)
            outputs["z"][:] = -1  # the caller's


def test_an_answer_outlives_the_compilation(compile_for: Compile) -> None:
    for x in (np.ones(8, np.float32), BIG):
        found = run(compile_for(LARGE, {"x": x}), {"x": x}, "y", "z")
        run(compile_for(LARGE, {"x": x}), {"x": 5 * x}, "y", "z")
        np.testing.assert_array_equal(found["y"], -x)


def test_an_output_that_is_not_wanted_is_not_written_over_another(compile_for: Compile) -> None:
    compilation = compile_for(LARGE, {"x": BIG})
    both = run(compilation, {"x": BIG}, "y", "z")
    assert set(run(compilation, {"x": 2 * BIG}, "y")) == {"y"}
    np.testing.assert_array_equal(both["z"], BIG)


def test_a_job_may_have_room_for_its_large_outputs(compile_for: Compile) -> None:
    compilation = compile_for(LARGE, {"x": BIG})
    room = {"y": np.zeros_like(BIG), "z": np.zeros(7, np.float32)}
    before = run(compilation, {"x": BIG}, "y", "z", room=room)
    assert before["y"] is room["y"]
    assert before["z"] is not room["z"]  # it does not fit there
    run(compilation, {"x": 2 * BIG}, "y", "z")  # it has no room, and leaves the other alone
    np.testing.assert_array_equal(room["y"], -BIG)


NOTHING = [
    "y = Max(x)",
    "y = Sum(x)",
    "a = Max(x) y = Sum(a)",
    "y = Identity(x)",
    "y = Cast<to = 1>(x)",
    "to = Constant<value = int64[1] {-1}>() y = Reshape(x, to)",
    "y = Transpose<perm = [0]>(x)",
    "y = Concat<axis = 0>(x)",
    "zero = Constant<value = float {0.0}>() y = Add(x, zero)",
]


@pytest.mark.parametrize("size", [7, 20_000])
@pytest.mark.parametrize("nodes", NOTHING)
def test_an_output_that_is_an_input_is_a_copy(compile_for: Compile, nodes: str, size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    compilation = compile_for(f"f (float[N] x) => (float[N] y) {{ {nodes} }}", {"x": x})
    for turn in range(3):
        given = x + turn
        found = run(compilation, {"x": given}, room={"y": np.full_like(x, -99)} if turn else None)
        assert not np.may_share_memory(found["y"], given)
        given[:] = -1  # the caller's
        np.testing.assert_array_equal(found["y"], x + turn)


ROTARY = """f (float[B,2,S,8] x, float[B,S,4] c, float[B,S,4] s) => (float[B,2,S,8] y) {
    one = Constant<value = int64[1] {1}>() zero = Constant<value = int64[1] {0}>()
    half = Constant<value = int64[1] {4}>() end = Constant<value = int64[1] {8}>()
    last = Constant<value = int64[1] {3}>()
    cc = Concat<axis = -1>(c, c) ss = Concat<axis = -1>(s, s)
    cos = Unsqueeze(cc, one) sin = Unsqueeze(ss, one)
    a = Slice(x, zero, half, last) b = Slice(x, half, end, last) n = Neg(b)
    turned = Concat<axis = -1>(n, a) p = Mul(x, cos) q = Mul(turned, sin) y = Add(p, q)
}"""


def test_no_run_writes_into_its_inputs(compile_for: Compile) -> None:
    """OpenVINO makes one operation of this network, which computes in the memory of x."""
    angles = np.ones((2, 4, 4), np.float32)
    feed: dict[str, Any] = {"x": np.ones((2, 2, 4, 8), np.float32), "c": angles, "s": angles.copy()}
    run(compile_for(ROTARY, feed), feed)
    assert all((value == 1).all() for value in feed.values())


@pytest.mark.parametrize("dtype", sorted(tensors.PASSED - {ir.DataType.DOUBLE}))
def test_small_inputs_that_nobody_may_write_to_are_new_each_time(
    compile_for: Compile, dtype: ir.DataType
) -> None:
    """They keep their memory from one request to the next."""
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    inputs, outputs = ([value(name, int(dtype), ["N"])] for name in "xy")
    graph = onnx.helper.make_graph([node], "f", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=opsets)
    compilation = compile_for(model, {"x": np.ones(4, dtype.numpy())})
    for turn, writable in enumerate((False, False, True, False)):
        x = np.array([(turn + at) % 2 + 1 for at in range(4)]).astype(dtype.numpy())
        x.flags.writeable = writable
        np.testing.assert_array_equal(run(compilation, {"x": x})["y"], x)


def test_an_index_that_is_out_of_bounds_is_found(compile_for: Compile) -> None:
    text = "f (float[N] x, int64[M] i) => (float[M] y) { y = Gather(x, i) }"
    x = np.arange(4, dtype=np.float32)
    compilation = compile_for(text, {"x": x, "i": np.array([0])})
    for index in (0, 3, -1, -4):
        found = run(compilation, {"x": x, "i": np.array([index])})
        assert found["y"].tolist() == [x[index]]
    for index in (4, -5, 2**24):
        with pytest.raises(InvalidArgument, match="out of bounds"):
            run(compilation, {"x": x, "i": np.array([index])})


@pytest.mark.parametrize(
    ("nodes", "shape", "count"),
    [
        ("y = GatherElements<axis = 1>(x, i)", (3, 2), 2),
        ("y = GatherND(x, i)", (3, 2), 3),
        ("u = GatherElements(x, j) y = ScatterElements<axis = 1>(x, i, u)", (3, 2), 2),
    ],
)
def test_so_is_one_of_each_operator_that_takes_some(
    compile_for: Compile, nodes: str, shape: tuple[int, ...], count: int
) -> None:
    ports = "(float[3,2] x, int64[A,B] i, int64[A,B] j)"
    text = f"f {ports} => (float y) {{ {nodes} }}"
    x, j = np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros(shape, np.int64)
    compilation = compile_for(text, {"x": x, "i": j, "j": j})
    run(compilation, {"x": x, "i": j + 1, "j": j})
    for index in (count, -count - 1):
        at = j.copy()
        at[-1, 0] = index
        with pytest.raises(InvalidArgument, match="out of bounds"):
            run(compilation, {"x": x, "i": at, "j": j})


@pytest.mark.parametrize("bad", [1e9, -1e9, np.nan, np.inf])
def test_a_number_that_does_not_fit_an_integer_is_found(compile_for: Compile, bad: float) -> None:
    text = "f (float[N] x) => (int64[N] y) { y = Cast<to = 7>(x) }"
    compilation = compile_for(text, {"x": np.ones(2, np.float32)})
    assert run(compilation, {"x": np.array([7.9, -3], np.float32)})["y"].tolist() == [7, -3]
    with pytest.raises(InvalidArgument, match="not compute exactly"):
        run(compilation, {"x": np.array([0, bad], np.float32)})


@pytest.mark.parametrize("value", [2**24 + 1, -(2**31), 2**40])
def test_an_integer_that_float32_lacks_is_found(compile_for: Compile, value: int) -> None:
    text = "f (int64[N] x) => (int64[N] y) { y = Identity(x) }"
    compilation = compile_for(text, {"x": np.array([1])})
    assert run(compilation, {"x": np.array([2**24])})["y"].tolist() == [2**24]
    with pytest.raises(InvalidArgument, match="beyond 16,777,216") as caught:
        run(compilation, {"x": np.array([value])})
    assert caught.value.field == "inputs['x']"


def test_sizes_that_a_request_gives_as_values_are_constants(compile_for: Compile) -> None:
    text = "f (float[N] x, int64[2] p) => (float[A,B] y) { y = Reshape(x, p) }"
    x = np.arange(6, dtype=np.float32)
    for shape in ((2, 3), (3, 2), (6, 1)):
        inputs = {"x": x, "p": np.array(shape)}
        assert run(compile_for(text, inputs), inputs)["y"].shape == shape
    with pytest.raises(InvalidModel):
        compile_for(text, {"x": x, "p": np.array([4, 2])})


def test_an_output_of_another_type_is_refused(compile_for: Compile) -> None:
    text = "f (float[2,2] x) => (float[2,2] y) { y = Cast<to = 10>(x) }"
    with pytest.raises((InvalidModel, UnsupportedLayers)):
        compile_for(text, {"x": np.ones((2, 2), np.float32)})


@pytest.mark.parametrize(("streams", "threads"), [(1, 2), (2, 1)])
def test_a_cancelled_run_ends_between_layers(
    compile_for: Compile, streams: int, threads: int
) -> None:
    size, layers = 1024, 200  # some seconds of one processor
    lines = (
        f"v{i + 1} = Tanh(p{i})\n p{i + 1} = MatMul(v{i + 1}, v{i + 1})" for i in range(layers)
    )
    body = "\n".join(["p0 = Identity(x)", *lines, f"y = Identity(p{layers})"])
    text = f"f (float[{size}, {size}] x) => (float[{size}, {size}] y) {{ {body} }}"
    x = np.ones((size, size), np.float32)
    properties: dict[str, object] = {"NUM_STREAMS": streams, "INFERENCE_NUM_THREADS": threads}
    compilation = compile_for(text, {"x": x}, properties)
    job = Job({"x": x}, lambda _: None, output_names=("y",))
    ended: list[Exception] = []

    def compute() -> None:
        try:
            compilation.run(job, "OPENVINO.CPU")
        except Exception as error:  # noqa: BLE001 - any, as it is cancelled
            ended.append(error)

    before = time.process_time()
    thread = threading.Thread(target=compute)
    thread.start()
    until(lambda: time.process_time() - before > 0.1)  # it computes
    job.token.cancel(Cancelled("enough"))
    thread.join(PATIENCE_SECONDS)
    assert ended


def until(condition: Callable[[], bool]) -> None:
    clock, end = threading.Event(), time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        clock.wait(0.001)
