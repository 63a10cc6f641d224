"""Compares outputs with onnx's reference in this process.

The tests cover every kind of value, dtype and control flow that the device says it supports.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from headrace.runtime.network.values import Value
from headrace.testing import networks
from headrace.testing.case import Case
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.suite.fixtures import DeviceFixtures, Loader

_NETWORKS = (
    networks.add(),
    networks.mlp(),
    networks.image(),
    networks.transformer(),
    networks.recurrent(),
    networks.divide(),
    networks.leftover(),
    networks.reshape(),
    networks.relu_relu(),
    networks.local_function(),
    networks.string_identity(),
    networks.string_join(),
    *networks.control_flow(),
    networks.sequence(),
    networks.optional(present=True),
    networks.optional(present=False),
    networks.fragile(),
    networks.scatter(),
    networks.scatter(reduction="add"),
)
_REPEATED = (
    networks.add(),
    networks.mlp(),
    networks.relu_relu(),
    networks.reshape(),
    networks.scatter(),
    networks.scatter("N"),
    networks.scatter("N", "add"),
)
_PASSING = (networks.reshape(), networks.same_type(), networks.same_type("6"))
_REQUESTS = 5  # a device may run the first ones in another way than later ones
_FEW_BITS = 2.0**-7  # bfloat16's; a device may round once more or less than the reference
_TYPES = (
    networks.typed(np.float16, "float16", tolerance=2.0**-10),
    networks.typed(ml_dtypes.bfloat16, "bfloat16", tolerance=_FEW_BITS),
    networks.typed(np.float64, "double"),
    networks.typed(np.int8, "int8"),
    networks.typed(np.int16, "int16"),
    networks.typed(np.int32, "int32"),
    networks.typed(np.int64, "int64"),
    networks.typed(np.uint8, "uint8"),
    networks.typed(np.uint16, "uint16"),
    networks.typed(np.uint32, "uint32"),
    networks.typed(np.uint64, "uint64"),
    networks.typed(np.bool_, "bool"),
)
_FLOATS = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan], np.float32)


class ValueConformance(DeviceFixtures):
    @pytest.mark.parametrize("case", _NETWORKS, ids=str)
    def test_a_network_computes_what_the_reference_does(self, load: Loader, case: Case) -> None:
        self.check(load(case), case)

    @pytest.mark.parametrize("case", _TYPES, ids=str)
    def test_a_type_is_computed_as_the_reference_does(self, load: Loader, case: Case) -> None:
        self.check(load(case), case)

    @pytest.mark.parametrize("batch", [1, 2, 7, 0])
    def test_the_batch_may_have_any_size(self, load: Loader, batch: int) -> None:
        case = networks.mlp()
        self.check(load(case), case, {"x": networks.random(batch, 8)})

    def test_the_sizes_may_change_from_request_to_request(self, load: Loader) -> None:
        case = networks.transformer()
        network = load(case)
        for batch, length in ((1, 3), (3, 1), (2, 9), (1, 3)):
            self.check(network, case, {"x": networks.random(batch, length, 16)})

    @pytest.mark.parametrize("case", _REPEATED, ids=str)
    def test_each_request_is_answered_from_its_own_inputs(self, load: Loader, case: Case) -> None:
        network = load(case)
        for turn in range(1, _REQUESTS + 1):
            inputs = {name: _scaled(value, turn) for name, value in case.inputs.items()}
            self.check(network, case, inputs)

    def test_infinities_and_nans_go_through(self, load: Loader) -> None:
        case = networks.relu_relu()
        inputs = {"x": _FLOATS[2:], "y": np.zeros(4, np.float32)}
        outputs = case.expected(inputs)
        assert np.isnan(outputs["z"][3])
        self.check(load(case), case, inputs)

    def test_inputs_may_be_read_only_and_of_any_strides(self, load: Loader) -> None:
        case = networks.add()
        x = networks.random(3, 2).T
        y = networks.random(2, 6)[:, ::2]
        x.flags.writeable = y.flags.writeable = False
        self.check(load(case), case, {"x": x, "y": y})

    def test_outputs_are_not_views_of_inputs(self, load: Loader) -> None:
        case = networks.reshape()
        x = networks.random(2, 6)
        outputs = InferRequest(load(case)).infer({"x": x})
        x[:] = 0  # the caller's own again
        assert_same_outputs(outputs, case.expected(), self.tolerance)

    def test_inputs_stay_as_they_were(self, load: Loader) -> None:
        case = networks.relu_relu()
        inputs = {name: np.copy(networks.random(4, seed=5)) for name in "xy"}
        self.check(load(case), case, inputs)
        for value in inputs.values():
            assert np.array_equal(value, networks.random(4, seed=5))

    @pytest.mark.parametrize("case", _PASSING, ids=str)
    def test_inputs_and_outputs_stay_as_they_were_during_later_requests(
        self, load: Loader, case: Case
    ) -> None:
        network = load(case)
        shape = np.asarray(case.inputs["x"]).shape
        earlier = []
        for seed in range(_REQUESTS):
            inputs = {"x": networks.random(*shape, seed=seed)}
            outputs = InferRequest(network).infer(inputs)
            earlier.append((inputs, outputs))
        for seed, (inputs, outputs) in enumerate(earlier):
            expected = {"x": networks.random(*shape, seed=seed)}
            assert np.array_equal(inputs["x"], expected["x"])
            assert_same_outputs(outputs, case.expected(expected), self.tolerance)


def _scaled(value: Value, factor: int) -> Value:
    """Floating point numbers times the factor."""
    floating = isinstance(value, np.ndarray) and value.dtype == np.float32
    return np.asarray(value) * np.float32(factor) if floating else value
