"""Preprocessing in the graph: types, layouts, sizes, mean and scale, against NumPy."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.values import Array
from headrace.runtime.transform.options import InputOptions, NetworkOptions, OutputOptions
from headrace.testing import networks
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.suite.fixtures import DeviceFixtures, Loader

_IMAGE = networks.image()
_UINT8, _DOUBLE = ir.DataType.UINT8, ir.DataType.DOUBLE


def photo(*shape: int) -> Array:
    """A uint8 image with all values."""
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


class PreprocessingConformance(DeviceFixtures):
    def check_preprocessed(self, network: ExecutableNetwork, sent: Array, seen: Array) -> None:
        """Fails unless `sent` gives what the network itself computes from `seen`."""
        outputs = InferRequest(network).infer({"x": sent})
        assert_same_outputs(outputs, _IMAGE.expected({"x": seen}), 10 * self.tolerance)

    def test_an_input_can_be_sent_in_another_type(self, load: Loader) -> None:
        network = load(_IMAGE, options=options(dtype=_UINT8))
        assert network.inputs[0].dtype is _UINT8
        sent = photo(2, 3, 32, 32)
        self.check_preprocessed(network, sent, sent.astype(np.float32))

    def test_an_input_can_be_sent_in_another_layout(self, load: Loader) -> None:
        network = load(_IMAGE, options=options(layout="NHWC", network_layout="NCHW"))
        assert network.inputs[0].shape == ("N", 32, 32, 3)
        sent = networks.random(2, 32, 32, 3)
        self.check_preprocessed(network, sent, sent.transpose(0, 3, 1, 2))

    def test_mean_and_scale_are_one_value_for_each_channel(self, load: Loader) -> None:
        mean, scale = (0.5, -1.0, 2.0), (2.0, 4.0, 0.5)
        network = load(_IMAGE, options=options(layout="NCHW", mean=mean, scale=scale))
        sent = networks.random(2, 3, 32, 32)
        by_channel = np.array([mean, scale], np.float32)[:, :, None, None]
        self.check_preprocessed(network, sent, (sent - by_channel[0]) / by_channel[1])

    def test_mean_and_scale_may_be_one_value_for_all(self, load: Loader) -> None:
        network = load(_IMAGE, options=options(dtype=_UINT8, mean=(128.0,), scale=(64.0,)))
        sent = photo(1, 3, 32, 32)
        self.check_preprocessed(network, sent, (sent.astype(np.float32) - 128) / 64)

    def test_an_image_is_enlarged_to_the_size_of_the_network(self, load: Loader) -> None:
        network = load(_IMAGE, options=options(layout="NCHW", resize="NEAREST"))
        sent = networks.random(1, 3, 16, 8)
        seen = sent.repeat(2, axis=2).repeat(4, axis=3)
        self.check_preprocessed(network, sent, seen)

    def test_an_image_is_shrunk_by_linear_interpolation(self, load: Loader) -> None:
        network = load(_IMAGE, options=options(layout="NCHW", resize="LINEAR"))
        sent = networks.random(1, 3, 64, 64)
        # Half-pixel centres: each pixel of the result lies in the middle of four.
        seen = sent.reshape(1, 3, 32, 2, 32, 2).mean(axis=(3, 5), dtype=np.float32)
        self.check_preprocessed(network, sent, seen)

    def test_all_of_it_goes_together(self, load: Loader) -> None:
        everything = options(
            dtype=_UINT8,
            layout="NHWC",
            network_layout="NCHW",
            resize="NEAREST",
            mean=(10.0, 20.0, 30.0),
            scale=(50.0,),
        )
        network = load(_IMAGE, options=everything)
        sent = photo(2, 16, 16, 3)
        seen = sent.repeat(2, axis=1).repeat(2, axis=2).transpose(0, 3, 1, 2).astype(np.float32)
        mean = np.array([10, 20, 30], np.float32)[:, None, None]
        self.check_preprocessed(network, sent, (seen - mean) / np.float32(50))

    def test_an_output_can_be_received_in_another_type(self, load: Loader) -> None:
        wanted = NetworkOptions(outputs={"scores": OutputOptions(dtype=_DOUBLE)})
        network = load(_IMAGE, options=wanted)
        assert network.outputs[0].dtype is _DOUBLE
        outputs = InferRequest(network).infer(_IMAGE.inputs)
        expected = {name: value.astype(np.float64) for name, value in _IMAGE.expected().items()}
        assert_same_outputs(outputs, expected, self.tolerance)

    def test_what_does_not_fit_the_network_is_refused_by_name(self, plugin: Plugin) -> None:
        with pytest.raises(InvalidArgument) as caught:
            plugin.load_network(Load(_IMAGE.network, options=options(layout="NH")))
        assert caught.value.field == "inputs['x'].layout"


def options(
    dtype: ir.DataType | None = None,
    layout: str = "",
    network_layout: str = "",
    resize: str = "",
    mean: tuple[float, ...] = (),
    scale: tuple[float, ...] = (),
) -> NetworkOptions:
    """Options for the image network's one input."""
    each = InputOptions(dtype, layout, network_layout, resize, mean, scale)
    return NetworkOptions(inputs={"x": each})
