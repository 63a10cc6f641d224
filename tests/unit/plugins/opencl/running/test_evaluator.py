"""What a profile on OPENCL counts, seen on the device that tinygrad makes of Python itself."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed: pip install 'headrace[opencl]'")

from tinygrad.tensor import Tensor

from headrace.plugins.opencl.backend import values
from headrace.plugins.opencl.running import evaluator
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.testing.case import network_of

DEVICE = "PYTHON"


def test_a_layer_whose_kernels_had_to_be_made_is_computed_once_more_and_only_that_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    class Watched(evaluator.TinygradEvaluator):
        def layer(self, node: ir.Node, evaluation: evaluator.Evaluation) -> list[values.Value]:
            events.append(node.op_type)
            return list(super().layer(node, evaluation))

    monkeypatch.setattr(evaluator, "wait_for", lambda device: events.append(f"wait for {device}"))
    # No other test has a layer of these sizes, whose kernels were there already.
    text = "any (float[3,5,7] x) => (float[3,5,7] y) { a = Exp(x) y = Softplus(a) }"
    watched = Watched(network_of(text).model, DEVICE)
    x = np.linspace(-1, 1, 105, dtype=np.float32).reshape(3, 5, 7)

    def profile() -> list[str]:
        events.clear()
        timed = evaluator.Evaluation(CancelToken(), timed=lambda *_: events.append("timed"))
        (y,) = watched.evaluate(timed, {"x": values.to_device(x, DEVICE)})
        assert isinstance(y, Tensor)
        expected = np.log1p(np.exp(np.exp(x)))
        np.testing.assert_allclose(values.to_host(y, DEVICE), expected, rtol=1e-5)
        return events

    once = [[layer, f"wait for {DEVICE}"] for layer in ("Exp", "Softplus")]
    assert profile() == [*once[0], *once[0], "timed", *once[1], *once[1], "timed"]
    assert profile() == [*once[0], "timed", *once[1], "timed"]


@pytest.mark.parametrize("axes", [[0, 0], [1, -2]])
def test_an_axis_is_put_in_once(axes: list[int]) -> None:
    text = "g (float[2] x, int64[2] axes) => (float[a,b,c] y) { y = Unsqueeze(x, axes) }"
    made = evaluator.TinygradEvaluator(network_of(text).model, DEVICE)
    given = {
        "x": values.to_device(np.zeros(2, np.float32), DEVICE),
        "axes": values.to_device(np.array(axes), DEVICE),
    }
    with pytest.raises(InvalidArgument, match="name one twice"):
        made.evaluate(evaluator.Evaluation(CancelToken()), given)
