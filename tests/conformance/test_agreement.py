"""CPU and TEMPLATE against the reference evaluator and ONNX Runtime, both run in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.plugins import cpu, template
from headrace.runtime.device.plugin import Plugin
from headrace.testing import networks
from headrace.testing.case import Case, parse
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import infer_once
from headrace.testing.services import services

TOLERANCE = 1e-5
CREATE = {"TEMPLATE": template.create_plugin, "CPU": cpu.create_plugin}

CASES = [
    networks.image(),
    networks.transformer(),
    networks.mlp(),
    networks.recurrent(),
    networks.string_identity(),
    networks.string_join(),
    *networks.control_flow(),
    networks.sequence(),
    networks.divide(),
]


@pytest.fixture(scope="module", params=CREATE)
def plugin(request: pytest.FixtureRequest) -> Iterator[Plugin]:
    with services() as offered:
        yield CREATE[request.param](request.param, offered, {})


def computed(plugin: Plugin, case: Case, inputs: Any) -> dict[str, Any]:
    return infer_once(plugin, case.network, **inputs)


def by_onnxruntime(case: Case, inputs: Mapping[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(
        case.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_device_agrees_with_the_reference(plugin: Plugin, case: Case) -> None:
    assert_same_outputs(computed(plugin, case, case.inputs), case.expected(), TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_device_agrees_with_onnxruntime(plugin: Plugin, case: Case) -> None:
    expected = by_onnxruntime(case, case.inputs)
    assert_same_outputs(computed(plugin, case, case.inputs), expected, TOLERANCE)


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("case", [networks.image(), networks.transformer()], ids=str)
def test_a_device_agrees_with_onnxruntime_at_any_batch_size(
    plugin: Plugin, case: Case, batch: int
) -> None:
    (one,) = case.inputs.values()
    assert isinstance(one, np.ndarray)
    inputs = {"x": networks.random(batch, *one.shape[1:], seed=batch)}
    expected = by_onnxruntime(case, inputs)
    assert_same_outputs(computed(plugin, case, inputs), expected, TOLERANCE)


@st.composite
def graphs(draw: st.DrawFn) -> Case:
    """Elementwise operators on each other's results, two of them the network's outputs."""
    values = ["x", "y"]
    nodes = []
    for at in range(draw(st.integers(1, 12))):
        operator = draw(st.sampled_from(["Relu", "Neg", "Abs", "Identity", "Add", "Mul", "Div"]))
        count = 2 if operator in ("Add", "Mul", "Div") else 1
        taken = [draw(st.sampled_from(values)) for _ in range(count)]
        nodes.append(f"v{at} = {operator}({', '.join(taken)})")
        values.append(f"v{at}")
    other = draw(st.sampled_from(values[2:]))
    nodes += [f"a = Neg({values[-1]})", f"b = Relu({other})"]
    head = "graph (float[N] x, float[N] y) => (float[N] a, float[N] b)"
    text = f"{head} {{ {chr(10).join(nodes)} }}"
    inputs = {"x": networks.random(5) + 4, "y": networks.random(5, seed=1) - 4}
    return Case("graph", parse(text), inputs)


@settings(max_examples=60, deadline=None)
@given(case=graphs())
def test_transformations_change_no_result(plugin: Plugin, case: Case) -> None:
    with np.errstate(all="ignore"):
        expected = case.expected()
    outputs = computed(plugin, case, case.inputs)
    for name, value in expected.items():
        # x · y⁻¹ underflows and overflows a little earlier than x / y does.
        ordinary = np.isfinite(value) & (np.abs(value) > 1e-30) & (np.abs(value) < 1e30)
        actual = np.asarray(outputs[name])
        np.testing.assert_allclose(actual[ordinary], value[ordinary], rtol=1e-4)
