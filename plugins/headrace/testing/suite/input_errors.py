"""Inputs and outputs that do not fit the network are refused before they reach the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.network.values import Value
from headrace.testing import networks
from headrace.testing.infer_request import InferRequest, RequestState
from headrace.testing.suite.fixtures import DeviceFixtures

_X = networks.random(2, 3)


class InputErrorConformance(DeviceFixtures):
    @pytest.mark.parametrize(
        ("inputs", "field"),
        [
            ({"x": _X}, "inputs['y']"),
            ({"x": _X, "y": _X, "z": _X}, "inputs['z']"),
            ({"x": _X, "y": None}, "inputs['y']"),
            ({"x": _X, "y": [_X]}, "inputs['y']"),
            ({"x": _X, "y": _X.astype(np.float64)}, "inputs['y'].dtype"),
            ({"x": _X, "y": _X.astype(np.int32)}, "inputs['y'].dtype"),
            ({"x": _X, "y": _X[:1]}, "inputs['y'].shape"),
            ({"x": _X, "y": _X.T}, "inputs['y'].shape"),
            ({"x": _X, "y": _X[0]}, "inputs['y'].shape"),
            ({"x": _X, "y": _X.ravel()[:0]}, "inputs['y'].shape"),
        ],
        ids=[
            "missing",
            "too many",
            "absent",
            "sequence",
            "float64",
            "int32",
            "size",
            "transposed",
            "rank",
            "empty",
        ],
    )
    def test_a_bad_input_is_refused_by_name(
        self, add: ExecutableNetwork, inputs: dict[str, Value], field: str
    ) -> None:
        request = InferRequest(add)
        with pytest.raises(InvalidArgument) as caught:
            request.start_async(inputs)
        assert caught.value.field == field
        assert request.state is RequestState.IDLE
        self.check(add, networks.add())

    @pytest.mark.parametrize("names", [("w",), ("z", "w"), ("z", "z")])
    def test_a_bad_choice_of_outputs_is_refused(
        self, add: ExecutableNetwork, names: tuple[str, ...]
    ) -> None:
        with pytest.raises(InvalidArgument) as caught:
            InferRequest(add).start_async(networks.add().inputs, output_names=names)
        assert caught.value.field in ("outputs", "outputs['w']")

    def test_what_only_the_run_finds_fails_the_request_alone(
        self, load: Any, new_request: Callable[[ExecutableNetwork], InferRequest]
    ) -> None:
        case = self.fragile
        network = load(case)
        request = new_request(network)
        with pytest.raises(InvalidArgument):
            request.infer({**case.inputs, **self.breaking})
        assert request.state is RequestState.IDLE
        self.check(network, case)
