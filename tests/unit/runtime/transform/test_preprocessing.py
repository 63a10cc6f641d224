"""What a caller sends and receives, against what the network takes and gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import InputOptions, OutputOptions
from headrace.runtime.transform.transform import transform_network
from headrace.testing.case import network_of, parse
from tests.support.model_zoo import FLOAT, branches, chain, image_network, model, node, run, value

UINT8 = ir.DataType.UINT8


def with_input(proto: Any = None, name: str = "x", **options: Any) -> Network:
    return transform_network(
        network_of(proto or image_network()), preprocess=({name: InputOptions(**options)}, {})
    )


def with_output(proto: Any = None, name: str = "y", **options: Any) -> Network:
    return transform_network(
        network_of(proto or image_network()), preprocess=({}, {name: OutputOptions(**options)})
    )


def image(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def expected(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return run(image_network(), {"x": np.ascontiguousarray(array, np.float32)})["y"]


def close(actual: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-2)


def test_a_caller_may_send_another_type() -> None:
    it = with_input(dtype=UINT8)
    assert it.inputs[0].dtype == UINT8
    sent = image(2, 3, 8, 8)
    close(run(it, {"x": sent})["y"], expected(sent))


def test_a_caller_may_send_another_layout() -> None:
    it = with_input(layout="NHWC", network_layout="NCHW")
    assert it.inputs[0].shape == ("N", 8, 8, 3)
    assert it.inputs[0].layout == "NHWC"
    sent = image(2, 8, 8, 3).astype(np.float32)
    close(run(it, {"x": sent})["y"], expected(sent.transpose(0, 3, 1, 2)))


def test_mean_and_scale_of_each_channel_are_taken_after_the_layout() -> None:
    mean, scale = (10.0, 20.0, 30.0), (2.0, 4.0, 8.0)
    it = with_input(dtype=UINT8, layout="NHWC", network_layout="NCHW", mean=mean, scale=scale)
    sent = image(1, 8, 8, 3)
    normal = (sent.astype(np.float32) - np.array(mean)) / np.array(scale)
    close(run(it, {"x": sent})["y"], expected(normal.transpose(0, 3, 1, 2)))


def test_one_mean_and_scale_serve_all_channels_without_a_layout() -> None:
    it = with_input(dtype=UINT8, mean=(127.5,), scale=(127.5,))
    sent = image(1, 3, 8, 8)
    close(run(it, {"x": sent})["y"], expected((sent - 127.5) / 127.5))


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_a_caller_may_send_another_size(opset: int) -> None:
    proto = model(
        [node("Relu", ["x"], ["y"])],
        [value("x", ("N", 1, 2, 2))],
        [value("y", ("N", 1, 2, 2))],
        opset=opset,
    )
    it = with_input(proto, layout="NCHW", resize="LINEAR")
    assert it.inputs[0].shape == ("N", 1, None, None)
    sent = np.array([[[[0, 0, 4, 4], [0, 0, 4, 4], [8, 8, 12, 12], [8, 8, 12, 12]]]], np.float32)
    close(run(it, {"x": sent})["y"], np.array([[[[0, 4], [8, 12]]]], np.float32))


@pytest.mark.parametrize("mode", ["LINEAR", "NEAREST", "CUBIC"])
def test_an_image_of_the_networks_size_is_not_changed_by_resizing(mode: str) -> None:
    it = with_input(dtype=UINT8, layout="NHWC", network_layout="NCHW", resize=mode)
    sent = image(1, 8, 8, 3)
    close(run(it, {"x": sent})["y"], expected(sent.transpose(0, 3, 1, 2)))


def test_integers_may_be_resized_to_the_nearest() -> None:
    proto = model(
        [node("Identity", ["x"], ["y"])],
        [value("x", (1, 1, 2, 2), TensorProto.UINT8)],
        [value("y", (1, 1, 2, 2), TensorProto.UINT8)],
    )
    it = with_input(proto, layout="NCHW", resize="NEAREST")
    assert run(it, {"x": image(1, 1, 6, 4)})["y"].shape == (1, 1, 2, 2)


def test_a_layout_alone_is_noted_and_changes_nothing() -> None:
    it = with_input(layout="nchw")
    assert it.inputs[0].layout == "NCHW"
    assert len(it.layers) == len(network_of(image_network()).layers)


def test_preprocessing_stands_for_no_original_layer() -> None:
    it = with_input(dtype=UINT8, mean=(1.0,))
    added = [layer for layer in it.layers if not layer.origins]
    assert [layer.op_type for layer in added] == ["Cast", "Sub"]


def test_a_caller_may_receive_another_type_and_layout() -> None:
    proto = model(
        [node("Relu", ["x"], ["y"])], [value("x", (1, 2, 3, 4))], [value("y", (1, 2, 3, 4))]
    )
    it = with_output(proto, dtype=ir.DataType.INT32, layout="NHWC", network_layout="NCHW")
    assert it.outputs[0].name == "y"
    assert (it.outputs[0].dtype, it.outputs[0].shape) == (ir.DataType.INT32, (1, 3, 4, 2))
    sent = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    received = run(it, {"x": sent})["y"]
    assert received.dtype == np.int32
    np.testing.assert_array_equal(received, sent.transpose(0, 2, 3, 1))


def test_other_readers_of_an_output_see_it_as_it_was() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["y"], ["z"])]
    proto = model(nodes, [value("x")], [value("y"), value("z")])
    it = with_output(proto, dtype=ir.DataType.INT32)
    found = run(it, {"x": np.full((2, 3), 1.5, np.float32)})
    assert found["y"].tolist() == [[1] * 3] * 2
    assert found["z"].tolist() == [[-1.5] * 3] * 2


def test_bodies_read_the_preprocessed_input() -> None:
    it = with_input(branches(), dtype=UINT8)
    feeds = {"x": np.full((2, 3), 3, np.uint8), "flag": np.array(True)}
    assert run(it, feeds)["y"].tolist() == [[3.0] * 3] * 2


WRONG_INPUTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown input": ({"name": "z"}, "inputs['z']", "no input"),
    "bad layout": ({"layout": "N-HWC"}, "inputs['x'].layout", "one letter"),
    "layout twice": ({"layout": "NCCC"}, "inputs['x'].layout", "one letter"),
    "rank": ({"layout": "NHW"}, "inputs['x'].layout", "rank 4"),
    "permutation": (
        {"layout": "NHWC", "network_layout": "NCHD"},
        "inputs['x'].layout",
        "permutation",
    ),
    "resize mode": ({"resize": "AREA", "layout": "NCHW"}, "inputs['x'].resize", "LINEAR"),
    "resize layout": ({"resize": "LINEAR"}, "inputs['x'].resize", "H and W"),
    "mean count": ({"mean": (1.0, 2.0), "layout": "NCHW"}, "inputs['x'].mean", "3 channels"),
    "mean layout": ({"mean": (1.0, 2.0, 3.0)}, "inputs['x'].mean", "which is C"),
    "mean not finite": ({"mean": (float("nan"),)}, "inputs['x'].mean", "finite"),
    "scale of zero": ({"scale": (0.0,)}, "inputs['x'].scale", "zero"),
    "string": ({"dtype": ir.DataType.STRING}, "inputs['x'].dtype", "cannot be converted"),
    "complex": ({"dtype": ir.DataType.COMPLEX64}, "inputs['x'].dtype", "cannot be converted"),
    "too new": ({"dtype": ir.DataType.FLOAT8E8M0}, "inputs['x'].dtype", "cannot be converted"),
    "undefined": ({"dtype": ir.DataType.UNDEFINED}, "inputs['x'].dtype", "cannot be converted"),
}


@pytest.mark.parametrize("kind", WRONG_INPUTS)
def test_wrong_options_name_their_field(kind: str) -> None:
    options, field, reason = WRONG_INPUTS[kind]
    with pytest.raises(InvalidArgument) as caught:
        with_input(**options)
    assert caught.value.field == field
    assert reason in caught.value.message


def test_resizing_needs_a_network_of_fixed_size() -> None:
    proto = model([node("Relu", ["x"], ["y"])], [value("x", (1, 3, "H", "W"))], [value("y", None)])
    with pytest.raises(InvalidArgument, match="no fixed height and width"):
        with_input(proto, layout="NCHW", resize="LINEAR")


def test_an_integer_network_takes_no_mean() -> None:
    proto = model(
        [node("Identity", ["x"], ["y"])],
        [value("x", (1,), TensorProto.INT32)],
        [value("y", (1,), TensorProto.INT32)],
    )
    with pytest.raises(InvalidArgument) as caught:
        with_input(proto, mean=(1.0,))
    assert caught.value.field == "inputs['x'].mean"


def test_a_sequence_is_taken_as_it_is() -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, (2,)))
    ends = [helper.make_value_info(name, kind) for name in "xy"]
    proto = model([node("Identity", ["x"], ["y"])], ends[:1], ends[1:])
    with pytest.raises(InvalidArgument, match="not a tensor"):
        with_input(proto, dtype=UINT8)


def test_an_unknown_output_is_named_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"did you mean|known") as caught:
        with_output(chain(), name="z")
    assert caught.value.field == "outputs['z']"


FLAT = parse(
    """flat (float[N,6] x) => (float[N] y) {
        axes = Constant<value_ints = [1]>()
        y = ReduceSum<keepdims = 0>(x, axes)
    }"""
)
FREE = parse("free (float[N,M] x) => (float[N,M] y) { y = Neg(x) }")


@pytest.mark.parametrize("shape", [(None, 2, 3), (None, 6), (None, None, 2), (None, 6, 1, 1)])
def test_a_caller_may_send_another_shape(shape: tuple[int | None, ...]) -> None:
    it = with_input(FLAT, shape=shape)
    assert it.inputs[0].shape == shape
    for rows in (2, 5):
        sent = np.arange(6 * rows, dtype=np.float32).reshape(
            rows, *(size or 3 for size in shape[1:])
        )
        close(run(it, {"x": sent})["y"], sent.reshape(rows, 6).sum(axis=1))


def test_a_caller_may_want_another_shape() -> None:
    it = with_output(FLAT, shape=(None, 1))
    assert it.outputs[0].shape == (None, 1)
    sent = np.arange(12, dtype=np.float32).reshape(2, 6)
    close(run(it, {"x": sent})["y"], sent.sum(axis=1, keepdims=True))


def test_a_shape_goes_with_another_type() -> None:
    it = with_input(FLAT, shape=(None, 2, 3), dtype=UINT8)
    sent = image(4, 2, 3)
    close(run(it, {"x": sent})["y"], sent.reshape(4, 6).sum(axis=1))


@pytest.mark.parametrize(
    ("proto", "options", "why"),
    [
        (FLAT, {"shape": (None, 5)}, "the sizes do not fit"),
        (FREE, {"shape": (None, None, None)}, "the sizes do not fit"),
        (FLAT, {"shape": (None, 2, 3), "layout": "NC"}, "goes with no layout"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(proto: Any, options: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        with_input(proto, **options)
    assert caught.value.field == "inputs['x'].shape"
