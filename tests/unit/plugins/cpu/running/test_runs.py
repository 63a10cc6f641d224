"""How requests' values pass into a session and out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.plugins.cpu.backend import session
from headrace.plugins.cpu.backend.session import Provider, SessionSettings
from headrace.plugins.cpu.backend.tensors import TensorConversion
from headrace.plugins.cpu.running.runs import HostRuns
from headrace.runtime.execution.job import Job
from headrace.testing.case import network_of

TWO = "n (float[2,3] x) => (float[2,3] y, float[3,2] z) { y = Neg(x) z = Transpose(y) }"
VARIES = "n (float[N,3] x) => (float[1,3] y) { y = Neg(x) }"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def run(text: str, certain: tuple[str, ...], room: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    network = network_of(text)
    opened = session.open_model(network.model, Provider(), SessionSettings())
    job = Job(inputs, lambda _: None, output_names=tuple(port.name for port in network.outputs))
    job.room = room
    runs = HostRuns(opened, TensorConversion(network.inputs, network.outputs), certain)
    return dict(runs(job, session.run_options()))


@pytest.mark.parametrize("names", [(), ("y",), ("z",), ("y", "z")])
def test_outputs_are_computed_where_there_is_room(names: tuple[str, ...]) -> None:
    given = {"y": np.zeros((2, 3), np.float32), "z": np.zeros((3, 2), np.float32)}
    room = {name: given[name] for name in names}
    x = X.copy()
    x.flags.writeable = False  # as memory that the client has sealed
    outputs = run(TWO, ("y", "z"), room, x=x)
    assert {name for name in outputs if outputs[name] is given[name]} == {*names}
    np.testing.assert_array_equal(outputs["y"], -X)
    np.testing.assert_array_equal(outputs["z"], -X.T)
    assert not any(given[name].any() for name in given if name not in names)


def test_an_output_that_may_have_another_shape_gets_memory_of_its_own() -> None:
    """An export often leaves the batch of its example in the declared shape."""
    room = np.zeros((1, 3), np.float32)
    outputs = run(VARIES, (), {"y": room}, x=X)
    np.testing.assert_array_equal(outputs["y"], -X)
    assert not room.any()
