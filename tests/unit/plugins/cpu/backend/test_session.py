"""ONNX Runtime sessions."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import onnx_ir as ir
import pytest

from headrace.plugins.cpu.backend import session
from headrace.plugins.cpu.backend.session import Provider, SessionSettings
from headrace.runtime.errors import Cancelled, FailedPrecondition, InvalidModel, Unavailable
from headrace.runtime.execution.cancel import CancelToken
from headrace.testing.case import network_of

WEIGHT = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
MATMUL = "m (float[N,64] x) => (float[N,64] y) { [product] y = MatMul(x, w) }"


def model(text: str = MATMUL, **weights: Any) -> ir.Model:
    return network_of(text, weights).model


def run(opened: session.OnnxRuntimeSession, feed: Mapping[str, Any]) -> Any:
    (output,) = opened.run(["y"], feed, session.run_options())
    return output


def with_weight(array: np.ndarray[Any, Any]) -> ir.Model:
    made = model(w=WEIGHT)
    value = made.graph.initializers["w"]
    value.const_value = ir.Tensor(array, name="w")
    return made


def unaligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    odd = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:]
    moved: np.ndarray[Any, Any] = odd.view(array.dtype).reshape(array.shape)
    assert not moved.flags.aligned
    return moved


@pytest.mark.parametrize(
    "weight", [WEIGHT, unaligned(WEIGHT), np.asfortranarray(WEIGHT)], ids=["own", "odd", "fortran"]
)
def test_weights_count_however_they_lie(weight: np.ndarray[Any, Any]) -> None:
    opened = session.open_model(with_weight(weight), Provider(), SessionSettings())
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(run(opened, {"x": x}), x @ WEIGHT, rtol=1e-5)


def test_weights_too_large_for_a_message_are_handed_over_wherever_they_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_MESSAGE_BYTES", 0)
    opened = session.open_model(with_weight(unaligned(WEIGHT)), Provider(), SessionSettings())
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(run(opened, {"x": x}), x @ WEIGHT, rtol=1e-5)


def test_a_model_is_left_as_it_was() -> None:
    made = model(w=WEIGHT)
    session.open_model(made, Provider(), SessionSettings())
    assert made.graph.initializers["w"].const_value is not None


def test_a_session_outlives_its_model() -> None:
    made = with_weight(WEIGHT.copy())
    opened = session.open_model(made, Provider(), SessionSettings())
    del made
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(run(opened, {"x": x}), x @ WEIGHT, rtol=1e-5)


def test_a_load_can_be_cancelled() -> None:
    token = CancelToken()
    token.cancel(Cancelled("nobody waits"))
    with pytest.raises(Cancelled):
        session.open_model(model(w=WEIGHT), Provider(), SessionSettings(), token)


def test_bytes_that_are_no_model_are_the_callers_fault() -> None:
    with pytest.raises(InvalidModel):
        session.open_bytes(b"not a model", Provider(), SessionSettings())


def test_a_missing_kernel_is_no_invalid_model() -> None:
    without = model("n (bfloat16[2] x) => (bfloat16[2] y) { y = Neg(x) }")
    with pytest.raises(FailedPrecondition, match="Neg"):
        session.open_model(without, Provider(), SessionSettings())


def test_nothing_is_printed_when_a_run_fails(capfd: pytest.CaptureFixture[str]) -> None:
    opened = session.open_model(
        model("g (float[2] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }"),
        Provider(),
        SessionSettings(),
    )
    with pytest.raises(Exception, match="out of data bounds"):
        run(opened, {"x": np.ones(2, np.float32), "i": np.array([7])})
    assert capfd.readouterr().err == ""


def test_runs_of_one_session_go_side_by_side() -> None:
    opened = session.open_model(model(w=WEIGHT), Provider(), SessionSettings(threads=1))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        x = np.full((3, 64), seed, np.float32)
        try:
            for _ in range(50):
                np.testing.assert_allclose(run(opened, {"x": x}), x @ WEIGHT, rtol=1e-5)
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_provider_that_the_library_goes_without_is_an_error() -> None:
    """ONNX Runtime itself would run the network by the next provider and say nothing."""
    provider = Provider("CoreMLExecutionProvider")  # of another system
    with pytest.raises(Unavailable, match="cannot load its CoreMLExecutionProvider"):
        session.open_model(model(w=WEIGHT), provider, SessionSettings())


def test_a_provider_with_a_turn_opens_and_runs_sessions_in_it() -> None:
    turn: Any = MagicMock()
    opened = session.open_model(model(w=WEIGHT), Provider(turn=turn), SessionSettings())
    assert turn.__enter__.call_count == turn.__exit__.call_count == 1
    run(opened, {"x": WEIGHT})
    assert turn.__enter__.call_count == turn.__exit__.call_count == 2
