"""A layer is tried on a provider and on processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

from headrace.plugins.cpu.backend import session
from headrace.plugins.cpu.backend.session import Provider, SessionSettings
from headrace.plugins.provider.claims import trial

ADD = "add (float[2,n] x, float[2,n] y) => (float[2,n] z) { z = Add(x, y) }"
Run = Callable[[dict[str, Any]], Any]


def bytes_of(text: str) -> bytes:
    model = parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    return bytes(model.SerializeToString())


class Computing:
    """A session of a provider that computes as it is told."""

    def __init__(self, compute: Run, shapes: list[Any]) -> None:
        self._compute = compute
        self._shapes = shapes

    def run(self, names: list[str], feed: dict[str, Any], options: object) -> list[Any]:
        return [self._compute(feed)]

    def output_shapes(self) -> list[Any]:
        return self._shapes


def why_not(monkeypatch: pytest.MonkeyPatch, compute: Run, text: str = ADD) -> str | None:
    """What is said of a provider that computes so."""
    real = session.open_bytes

    def open_bytes(data: bytes, provider: Provider, settings: SessionSettings) -> Any:
        if not settings.strict:
            return real(data, provider, settings)
        shapes = real(data, Provider(), SessionSettings()).output_shapes()
        return Computing(compute, shapes)

    monkeypatch.setattr(session, "open_bytes", open_bytes)
    return trial.why_not(bytes_of(text), Provider("A"))


def test_a_layer_that_is_right_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(monkeypatch, lambda feed: feed["x"] + feed["y"]) is None


def test_a_layer_that_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    why = why_not(monkeypatch, lambda feed: feed["x"] - feed["y"])
    assert why is not None
    assert why.startswith("A is wrong: output 'z' differs from CPU's by")


def test_a_layer_that_rounds_to_sixteen_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "product (float[64,64] x, float[64,64] y) => (float[64,64] z) { z = MatMul(x, y) }"

    def rounded(feed: dict[str, Any]) -> Any:
        low = [feed[name].astype(np.float16).astype(np.float32) / 2**4 for name in "xy"]
        return (low[0] @ low[1]) * 2**8 * np.float32(1.002)

    assert "is wrong" in (why_not(monkeypatch, rounded, text) or "")


def test_a_layer_that_forgets_one_of_many_inputs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "least (float[3] x, float[3] y, float[3] z) => (float[3] m) { m = Min(x, y, z) }"
    why = why_not(monkeypatch, lambda feed: np.minimum(*list(feed.values())[:2]), text)
    assert "is wrong" in (why or "")


def test_a_layer_that_computes_float64_in_float32_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "add (double[2] x, double[2] y) => (double[2] z) { z = Add(x, y) }"
    assert why_not(monkeypatch, lambda feed: feed["x"] + feed["y"], text) is None

    def in_float32(feed: dict[str, Any]) -> Any:
        return (feed["x"].astype(np.float32) + feed["y"].astype(np.float32)).astype(np.float64)

    assert "is wrong" in (why_not(monkeypatch, in_float32, text) or "")


def test_a_layer_that_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(feed: dict[str, Any]) -> Any:
        raise RuntimeError("Program Add requires f16 but the device does not support it")

    why = why_not(monkeypatch, fails)
    assert why == "A fails on it: Program Add requires f16 but the device does not support it"


def test_zeros_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "log (float[3] x) => (float[3] y) { y = Log(x) }"
    with np.errstate(all="ignore"):
        why = why_not(monkeypatch, lambda feed: np.log(np.maximum(feed["x"], 1e-38)), text)
    assert why == "A is wrong: output 'y' has no NaN or infinity where CPU's has"


@pytest.mark.parametrize(
    "text",
    [
        "texts (string[2] x) => (string[2] y) { y = Identity(x) }",
        "large (float[4096,4096] x) => (float[4096,4096] y) { y = Relu(x) }",
        "grows (float[99999,1] x, float[1,99999] y) => (float[99999,99999] z) { z = Add(x, y) }",
        "shaped (float[2,3] x, int64[1] s) => (float[n] y) { y = Reshape(x, s) }",
    ],
)
def test_a_layer_that_cannot_be_tried_is_taken(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert why_not(monkeypatch, lambda feed: None, text) is None
