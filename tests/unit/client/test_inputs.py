"""What the client accepts as inputs, and how it says what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

from headrace.client import errors
from headrace.client.info import NetworkInfo, Port, Ports, Shape
from headrace.client.inputs import RequestEncoder
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import codec, dtypes


def network(*inputs: Port) -> NetworkInfo:
    return NetworkInfo(
        name="n",
        device="CPU",
        generation=1,
        state="READY",
        reason="",
        inputs=Ports(inputs),
        outputs=Ports([Port("label", "int64", (1,)), Port("score", "float32", (1,))]),
        config={},
        load_seconds=0,
        from_cache=False,
        notes=(),
        execution_devices=("CPU",),
        origin="client",
        states={},
    )


def encoder(
    dtype: str = "float32",
    shape: Shape | None = None,
    *,
    kind: Literal["tensor", "sequence"] = "tensor",
    optional: bool = False,
) -> RequestEncoder:
    return RequestEncoder(network(Port("x", dtype, shape, kind, optional)))


def encoded(accepting: RequestEncoder, value: Any) -> Any:
    request, attachments = accepting.encode({"x": value})
    return codec.decode_values(request.inputs, attachments)["x"]


SMALL = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(6, dtype=np.float32).reshape(3, 2).T,
    np.array(2, np.float32),
    np.zeros((0, 3), np.float32),
    np.array([[True, False]]),
    np.array([-(2**63), 2**63 - 1]),
    np.array([1, 2.5], ml_dtypes.bfloat16),
    np.array([-8, 7], ml_dtypes.int4),
    np.arange(1000) + 1j,
]


@pytest.mark.parametrize("array", SMALL, ids=lambda each: f"{each.dtype}{each.shape}")
def test_a_small_request_is_the_same_message_as_any_other(array: Any) -> None:
    name = dtypes.name_of(dtypes.number_of(array.dtype))
    ports = Port("x", name, None), Port("\u00fc", name, None, optional=True)
    accepting = RequestEncoder(network(*ports), "7")
    for inputs in ({"x": array}, {"\u00fc": array, "x": array}):
        for _ in range(2):
            small = accepting.encode_small(inputs)
            assert small is not None
            request, attachments = accepting.encode(inputs)
            assert not attachments
            assert pb.InferRequest.FromString(small) == request


@pytest.mark.parametrize(
    "value",
    [
        [1.0],
        np.float32(1),
        None,
        np.ones(2, np.dtype("float32").newbyteorder()),
        np.ones(codec.ATTACHMENT_BYTES // 4 + 1, np.float32),
        np.ma.masked_array([1.0], dtype=np.float32),
    ],
    ids=["list", "scalar", "none", "byte order", "large", "subclass"],
)
def test_other_values_are_not_for_small_requests(value: Any) -> None:
    assert encoder(optional=True).encode_small({"x": value}) is None


def test_strings_missing_inputs_and_states_are_not_for_small_requests() -> None:
    assert encoder("string").encode_small({"x": np.array(["a"], object)}) is None
    assert encoder().encode_small({}) is None
    odd: list[dict[str, Any]] = [{"state": "LOADING"}, {"states": {"h": "n"}}]
    for each in odd:
        accepting = RequestEncoder(replace(network(Port("x", "float32", None)), **each))
        assert accepting.encode_small({"x": np.ones(1, np.float32)}) is None


def test_a_small_request_is_checked_as_any_other_also_after_good_ones() -> None:
    accepting = encoder(shape=(2,))
    assert accepting.encode_small({"x": np.ones(2, np.float32)})
    wrong = {"x.shape": np.ones(3, np.float32), "x.dtype": np.ones(2, np.float64)}
    for field, value in wrong.items():
        for encode in (accepting.encode_small, accepting.encode):
            with pytest.raises(errors.InvalidArgument) as caught:
                encode({"x": value})
            assert caught.value.details.field == f"inputs['x']{field[1:]}"
    unknown = {"x": np.ones(2, np.float32), "z": np.ones(2, np.float32)}
    assert accepting.encode_small(unknown) is None
    with pytest.raises(errors.InvalidArgument, match="has no input 'z'"):
        accepting.encode(unknown)


def test_requests_of_many_shapes_are_not_all_remembered() -> None:
    accepting = encoder()
    for size in range(200):
        small = accepting.encode_small({"x": np.ones(size, np.float32)})
        assert small is not None
        assert list(pb.InferRequest.FromString(small).inputs[0].tensor.shape) == [size]
    assert len(accepting._heads) <= 64


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", 1.5),
        ("float32", [[1, 2], [3, 4.5]]),
        ("float32", [True, False]),
        ("bfloat16", [1, 2.5]),
        ("uint8", [0, 255]),
        ("int4", [-8, 7]),
        ("int64", 2**62),
        ("complex64", [1, 2j]),
        ("bool", [True, False]),
        ("string", ["a", "b"]),
        ("string", "text"),
        ("int32", []),
    ],
)
def test_python_values_take_the_inputs_type(dtype: str, value: Any) -> None:
    array = encoded(encoder(dtype), value)
    request = pb.InferRequest()
    codec.encode_values({"x": array}, request.inputs, [])
    assert request.inputs[0].tensor.dtype
    assert array.dtype.name in (dtype, "object")
    assert array.tolist() == np.array(value, dtype=array.dtype).tolist()


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("int64", [1.5], "holds float64, which do not all fit the network's int64"),
        ("uint8", [256], "do not all fit the network's uint8"),
        ("uint8", [-1], "do not all fit the network's uint8"),
        ("int4", [8], "do not all fit the network's int4"),
        ("float32", ["a"], "holds text, and the network takes float32"),
        ("float32", [1j], "holds complex128"),
        ("float32", [[1], [1, 2]], "is not an array"),
        ("bool", [2], "do not all fit the network's bool"),
        ("string", [1], "holds a int; elements must be str or bytes"),
    ],
)
def test_python_values_that_would_change_are_refused(dtype: str, value: Any, message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message) as caught:
        encoder(dtype).encode({"x": value})
    assert caught.value.details.field is not None
    assert caught.value.details.field.startswith("inputs['x']")


def test_an_array_of_another_type_is_refused_with_the_remedy() -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        encoder("float32").encode({"x": np.zeros(2)})
    assert caught.value.details.field == "inputs['x'].dtype"
    assert str(caught.value) == (
        "inputs['x'] is float64, the network takes float32: pass "
        "inputs['x'].astype(np.float32), or load the network with "
        "preprocessing={'x': {'dtype': 'float64'}}"
    )


def test_the_remedy_for_other_types_names_ml_dtypes() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"astype\(ml_dtypes\.bfloat16\)"):
        encoder("bfloat16").encode({"x": np.zeros(2)})
    with pytest.raises(errors.InvalidArgument, match=r"astype\(object\)"):
        encoder("string").encode({"x": np.zeros(2)})
    with pytest.raises(errors.InvalidArgument, match="the network takes int32: pass an array of"):
        encoder("int32").encode({"x": np.array(["a", "b"])})


@pytest.mark.parametrize("priority", [11, -11, "high", 1.5])
def test_a_priority_out_of_its_range_is_refused(priority: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="pass a whole number from -10 to 10"):
        encoder("float32").encode({"x": np.zeros(2, np.float32)}, priority=priority)


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        ("float32", np.zeros(2, ">f4")),
        ("string", np.array(["a", "b"])),
        ("float32", np.float32(1)),
        ("bfloat16", np.zeros(2, ml_dtypes.bfloat16)),
    ],
)
def test_arrays_of_the_same_type_in_other_clothes_are_taken(dtype: str, array: Any) -> None:
    assert encoded(encoder(dtype), array).shape == np.shape(array)


def test_tensors_of_other_libraries_are_taken_as_arrays() -> None:
    class Foreign:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return np.ones(3, np.float32)

    assert encoded(encoder(), Foreign()).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("shape", "array_shape", "message"),
    [
        ((1, 3), (1, 4), r"has shape \(1, 4\), the network takes \(1, 3\)"),
        (("N", 3), (2, 2), r"the network takes \(N, 3\)"),
        ((None, 3), (3,), r"the network takes \(\?, 3\); add the batch dimension"),
        ((), (1,), r"the network takes \(\)"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(
    shape: Shape, array_shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(errors.InvalidArgument, match=message) as caught:
        encoder(shape=shape).encode({"x": np.zeros(array_shape, np.float32)})
    assert caught.value.details.field == "inputs['x'].shape"


def test_sizes_that_are_not_fixed_may_be_any() -> None:
    assert encoded(encoder(shape=("N", None, 3)), np.zeros((5, 0, 3), np.float32)).shape == (
        5,
        0,
        3,
    )
    assert encoded(encoder(shape=None), np.zeros((1, 2, 3, 4), np.float32)).ndim == 4


def test_a_sequence_is_a_list_of_arrays() -> None:
    taking = encoder(kind="sequence")
    first, second = encoded(taking, [np.ones(2, np.float32), [1, 2, 3]])
    assert (first.shape, second.shape) == ((2,), (3,))
    with pytest.raises(errors.InvalidArgument, match="takes a list of arrays"):
        taking.encode({"x": np.ones(2, np.float32)})
    with pytest.raises(errors.InvalidArgument, match=r"inputs\['x'\]\[1\] is float64"):
        taking.encode({"x": [np.ones(2, np.float32), np.ones(2)]})


def test_an_optional_may_be_none_or_left_out() -> None:
    taking = encoder(optional=True)
    assert encoded(taking, None) is None
    assert not taking.encode({})[0].inputs


def test_names_are_checked_both_ways() -> None:
    with pytest.raises(errors.InvalidArgument, match="no input 'X'; did you mean 'x'") as caught:
        encoder().encode({"X": [1]})
    assert caught.value.details.field == "inputs['X']"
    with pytest.raises(errors.InvalidArgument, match="input x is missing"):
        encoder().encode({})
    with pytest.raises(errors.InvalidArgument, match="is None, but the input is not optional"):
        encoder().encode({"x": None})


def test_an_error_repeats_a_long_name_no_longer_than_one_of_the_server() -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        encoder().encode({"x" * 2**16: np.ones(1, np.float32)})
    details = caught.value.details
    assert str(caught.value).startswith("the network has no input 'xxx")
    assert (details.reason, len(details.field or "") < 300) == ("INVALID_ARGUMENT", True)
    assert len(details.message) < 3000


def test_outputs_are_checked() -> None:
    with pytest.raises(errors.InvalidArgument, match="no output 'scores'; did you mean 'score'"):
        encoder().encode({"x": [1]}, outputs=["scores"])
    with pytest.raises(errors.InvalidArgument, match="pass a list of names"):
        encoder().encode({"x": [1]}, outputs="score")


def test_the_priority_is_checked() -> None:
    with pytest.raises(errors.InvalidArgument, match="from -10 to 10") as caught:
        encoder().encode({"x": [1]}, priority=11)
    assert caught.value.details.field == "priority"


def test_a_type_this_client_does_not_know_is_left_to_the_server() -> None:
    assert encoded(encoder("unknown"), np.zeros(2, np.int8)).dtype == np.int8


@pytest.mark.parametrize("inputs", [np.zeros(1, np.float32), [1.0], None])
def test_inputs_come_by_name(inputs: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="pass a dictionary of arrays by name"):
        encoder().encode(inputs)


def test_of_a_network_that_was_loading_nothing_is_known() -> None:
    loading = replace(network(), state="LOADING", inputs=Ports([]))
    with pytest.raises(errors.FailedPrecondition, match="'n' was still loading"):
        RequestEncoder(loading).encode({"x": [1.0]})
