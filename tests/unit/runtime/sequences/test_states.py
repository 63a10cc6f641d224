"""States: which tensors they may be, what they begin with, and what is kept of a request."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from headrace.ipc.pool import SegmentPool
from headrace.runtime.errors import FailedPrecondition, InvalidArgument
from headrace.runtime.network.network import Dimension, Port
from headrace.runtime.sequences.states import States, kept

FLOAT = ir.DataType.FLOAT
Shape = tuple[Dimension, ...]


def port(name: str, *shape: Dimension, dtype: ir.DataType = FLOAT, **more: Any) -> Port:
    return Port(name, dtype, shape, **more)


X, Y = port("x", "batch", 576), port("y", "batch", 1)
H, HN = port("h", 1, "batch", 128), port("hn", None, None, None)
C, CN = port("c", 2), port("cn", 2)


def states(text: str = "h=hn,c=cn") -> States:
    return States(text, [X, H, C], [Y, HN, CN])


def test_the_client_has_the_inputs_and_outputs_that_are_left() -> None:
    found = states()
    assert found.inputs == (X,)
    assert found.outputs == (Y,)
    assert found.outputs_by_input == {"h": "hn", "c": "cn"}
    assert found.output_names == ("hn", "cn")


def test_a_sequence_begins_with_zeros_of_the_batch_that_its_first_request_brings() -> None:
    found = states()
    sizes = found.sizes({"x": np.zeros((3, 576), np.float32)})
    zeros = found.initial(sizes)
    assert {name: value.shape for name, value in zeros.items()} == {"h": (1, 3, 128), "c": (2,)}
    assert all(value.dtype == np.float32 and not value.any() for value in zeros.values())
    assert found.size_bytes(sizes) == 4 * (3 * 128 + 2)


def test_a_request_of_another_batch_than_its_sequence_is_refused() -> None:
    found = states()
    found.check_sizes("s", (3,), (3,))
    with pytest.raises(InvalidArgument, match=r"'x' has the size 2, but .* 's' .* 3") as caught:
        found.check_sizes("s", (3,), (2,))
    assert caught.value.field == "inputs['x'].shape"


@pytest.mark.parametrize("shape", [("batch", 4), (4, "batch"), (None, 4)])
def test_the_batch_is_found_by_its_name_or_as_the_first_axis(shape: Shape) -> None:
    x = port("x", None if shape[0] is None else "batch", 2)
    found = States("h=hn", [x, port("h", *shape)], [port("hn", *shape)])
    (zeros,) = found.initial(found.sizes({"x": np.zeros((5, 2), np.float32)})).values()
    assert sorted(zeros.shape) == [4, 5]


BAD: dict[str, tuple[str, list[Port], list[Port], str]] = {
    "no such input": ("g=hn", [X, H], [Y, HN], "no input 'g'"),
    "no such output": ("h=hm", [X, H], [Y, HN], "no output 'hm'; known: hn, y"),
    "an output for an input": ("hn=hn", [X, H], [Y, HN], "no input 'hn'"),
    "input twice": ("h=hn,h=y", [X, H], [Y, HN], "input 'h' twice"),
    "output twice": ("h=cn,c=cn", [X, H, C], [CN], "output 'cn' twice"),
    "dtype": ("c=d", [C], [port("d", 2, dtype=ir.DataType.DOUBLE)], "'d' is float64 and input 'c'"),
    "size": ("c=d", [C], [port("d", 3)], r"'d' has the shape \[3\] and input 'c' \[2\]"),
    "rank": ("c=d", [C], [port("d", 2, 1)], r"'d' has the shape \[2, 1\]"),
    "string": (
        "a=b",
        [port("a", 1, dtype=ir.DataType.STRING)],
        [port("b", 1, dtype=ir.DataType.STRING)],
        "input 'a' is not a tensor of numbers",
    ),
    "sequence": ("c=d", [C], [port("d", 2, kind="sequence")], "output 'd' is not a tensor"),
    "optional": ("a=cn", [port("a", 2, optional=True)], [CN], "input 'a' is not a tensor"),
    "no rank": ("a=cn", [Port("a", FLOAT, None)], [CN], "'a' has no known shape"),
    "no size": (
        "a=b",
        [X, port("a", 1, "past")],
        [port("b", 1, None)],
        "axis 1 .*axis of that name",
    ),
    "no name": (
        "a=b",
        [X, port("a", 1, None)],
        [port("b", 1, None)],
        "axis 1 of input 'a'.* batch",
    ),
    "no batch": ("a=b", [port("x", 2), port("a", None)], [port("b", None)], "axis 0 of input 'a'"),
    "size of a state": (
        "a=b,c=d",
        [port("a", "n"), port("c", "n")],
        [port("b", "n"), port("d", "n")],
        "axis 0 of input 'a'",
    ),
    "size of an optional": (
        "a=b",
        [port("x", "n", optional=True), port("a", "n")],
        [port("b", "n")],
        "axis 0 of input 'a'",
    ),
}


@pytest.mark.parametrize(("text", "inputs", "outputs", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_a_state_is_refused_by_the_names_of_key_and_tensor(
    text: str, inputs: list[Port], outputs: list[Port], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^STATES: .*{message}") as caught:
        States(text, inputs, outputs)
    assert caught.value.field == "config['STATES']"


@pytest.mark.parametrize(
    ("sizes", "declared", "shape"),
    [
        ("2x1x128", (2, None, 128), (2, 1, 128)),
        ("2xNx128", (2, None, 128), (2, 5, 128)),
        ("?xNx128", (2, "other", None), (2, 5, 128)),
        ("1x3", None, (1, 3)),
        ("1x3", ("batch", "length"), (1, 3)),
        ("?x3", ("batch", "length"), (5, 3)),
    ],
)
def test_the_key_gives_the_sizes_that_the_model_leaves_open(
    sizes: str, declared: Shape | None, shape: tuple[int, ...]
) -> None:
    h, x = Port("h", FLOAT, declared), port("x", "batch", None)
    found = States(f"h=hn={sizes}", [x, h], [Port("hn", FLOAT, None)])
    (value,) = found.initial(found.sizes({"x": np.zeros((5, 2), np.float32)})).values()
    assert value.shape == shape
    assert not value.any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h=hn=3x1x128", r"'h' has the shape \[2, \?, 128\], which 3x1x128 is not"),
        ("h=hn=2x1", "which 2x1 is not"),
        ("h=hn=2x1xN", "which 2x1xN is not"),
        ("h=hn", "give it one: h=hn=\\?xSIZEx\\?"),
        ("h=hn=2xNx128", "no input of the client's has a batch"),
        ("h=hn=2x1x128=1e300", "'h' is float32, which has no 1e300"),
    ],
)
def test_what_contradicts_the_model_or_is_missing_is_told(text: str, message: str) -> None:
    h, hn = port("h", 2, None, 128), port("hn", None, None, None)
    with pytest.raises(InvalidArgument, match=message):
        States(text, [port("x", 1, 4), h], [hn])


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        (np.float32, "-1.5", -1.5),
        (np.float16, "inf", np.inf),
        (ml_dtypes.bfloat16, "2e0", 2),
        (np.int64, str(2**62 + 1), 2**62 + 1),
        (np.uint8, "255", 255),
        (np.bool_, "1", True),
    ],
)
def test_a_sequence_may_begin_with_another_value_than_zero(
    dtype: Any, text: str, value: Any
) -> None:
    number = ir.DataType.from_numpy(np.dtype(dtype))
    found = States(f"a=b==  {text}", [port("a", 3, dtype=number)], [port("b", 3, dtype=number)])
    (array,) = found.initial(()).values()
    assert array.dtype == dtype
    assert array.tolist() == [value] * 3


@pytest.mark.parametrize(
    ("dtype", "text"), [("uint8", "256"), ("uint8", "-1"), ("int64", "0.5"), ("bool", "2")]
)
def test_a_value_that_the_type_does_not_have_is_refused(dtype: str, text: str) -> None:
    number = ir.DataType.from_numpy(np.dtype(dtype))
    with pytest.raises(InvalidArgument, match=f"is {dtype}, which has no {text}"):
        States(f"a=b=3={text}", [port("a", 3, dtype=number)], [port("b", 3, dtype=number)])


def test_options_for_a_state_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="'hn' is a state"):
        States("h=hn", [X, H], [Y, HN], ["x", "hn"])


def test_the_next_values_are_taken_out_of_the_outputs() -> None:
    found = states()
    h, c = np.ones((1, 3, 128), np.float32), np.ones(2, np.float32)
    outputs: dict[str, Any] = {"y": np.zeros((3, 1)), "hn": h, "cn": c}
    taken = found.take(outputs, (3,))
    assert taken["h"] is h
    assert taken["c"] is c
    assert list(outputs) == ["y"]


@pytest.mark.parametrize(
    "value",
    [
        np.ones((1, 2, 128), np.float32),
        np.ones((3, 128), np.float32),
        np.ones((1, 3, 128), np.float64),
        [],
        None,
    ],
)
def test_an_output_that_cannot_be_the_next_value_is_named(value: Any) -> None:
    outputs = {"hn": value, "cn": np.ones(2, np.float32)}
    with pytest.raises(FailedPrecondition, match=r"'hn' came as .* 'h', float32\[1, 3, 128\]"):
        states().take(outputs, (3,))


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float16, ml_dtypes.bfloat16])
def test_a_state_may_have_any_type_of_numbers(dtype: Any) -> None:
    number = ir.DataType.from_numpy(np.dtype(dtype))
    found = States("a=b", [port("a", 3, dtype=number)], [port("b", 3, dtype=number)])
    assert found.initial(())["a"].dtype == dtype
    assert found.take({"b": np.ones(3, dtype)}, ())["a"].dtype == dtype


def test_a_scalar_may_be_a_state() -> None:
    found = States("a=b", [port("a")], [port("b")])
    assert found.initial(())["a"].shape == ()
    assert found.take({"b": np.array(7, np.float32)}, ())["a"] == 7


def test_an_array_that_has_its_memory_to_itself_is_kept_without_a_copy() -> None:
    array = np.arange(6.0)
    assert kept(array) is array
    shaped = array.reshape(2, 3)
    assert kept(shaped) is shaped


def test_shared_memory_with_a_worker_is_not_kept() -> None:
    pool = SegmentPool(itertools.count(1))
    segment = pool.take(64)
    state = pool.lend(segment)[:32].view(np.float32)
    state[:] = 7
    copy = kept(state)
    del state
    assert pool.idle() == segment.size  # it is back
    assert copy.tolist() == [7] * 8
    pool.close()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((10, 6))[0],
        np.frombuffer(bytes(4000), np.float32)[:8],
        np.ndarray((8,), np.float32, bytes(4000)),
        np.frombuffer(memoryview(bytearray(4000)), np.uint8, 100),
        np.arange(6.0).reshape(2, 3).T,
    ],
    ids=["a row", "of bytes", "on bytes", "of a view", "not in order"],
)
def test_an_array_that_would_keep_other_memory_is_copied(array: Any) -> None:
    copy = kept(array)
    assert copy.base is None
    assert copy.flags.c_contiguous
    np.testing.assert_array_equal(copy, array)
