"""Layers that give other outputs for the same inputs."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.runtime.network.random_layers import random_layers
from headrace.testing.case import network_of


@pytest.mark.parametrize(
    "layer",
    [
        "Bernoulli(x)",
        "RandomNormalLike(x)",
        "RandomUniformLike<seed = 1.0>(x)",
        "RandomNormal<shape = [2]>()",
        "RandomUniform<shape = [2]>()",
        "com.microsoft.BiasDropout(x, x)",
        "com.microsoft.Sampling(x)",
    ],
)
def test_layers_that_draw_are_found(layer: str) -> None:
    text = f"draw (float[2] x) => (float[2] y) {{ y = {layer} }}"
    assert random_layers(network_of(text).model) == ("y",)


def test_others_are_not() -> None:
    assert (
        random_layers(network_of("plain (float[2] x) => (float[2] y) { y = Relu(x) }").model) == ()
    )


def test_a_layer_in_a_body_is_found() -> None:
    text = """choose (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = g () => (float[2] drawn) { drawn = RandomNormalLike(x) },
            else_branch = h () => (float[2] same) { same = Identity(x) }
        >
    }"""
    (name,) = random_layers(network_of(text).model)
    assert name.endswith("drawn")


@pytest.mark.parametrize(
    ("given", "drops"),
    [("x", False), ("x, ratio", False), ("x, ratio, off", False), ("x, ratio, on", True)],
)
def test_a_dropout_is_found_only_if_it_trains(given: str, drops: bool) -> None:
    weights = {"ratio": np.array(0.5, np.float32), "off": np.array(False), "on": np.array(True)}
    used = {name: each for name, each in weights.items() if name in given}
    model = network_of(f"drop (float[2] x) => (float[2] y) {{ y = Dropout({given}) }}", used).model
    assert random_layers(model) == (("y",) if drops else ())


def test_a_dropout_is_found_whose_mode_a_request_gives() -> None:
    text = "drop (float[2] x, bool t) => (float[2] y) { y = Dropout(x, , t) }"
    assert random_layers(network_of(text).model) == ("y",)


def test_a_dropout_of_old_models_trains_unless_it_says_that_it_tests() -> None:
    old = "old (float[2] x) => (float[2] y) { y = Dropout%s(x) }"
    assert random_layers(network_of(old % "", opset=6).model) == ("y",)
    assert random_layers(network_of(old % "<is_test = 1>", opset=6).model) == ()
    assert random_layers(network_of(old % "", opset=7).model) == ()
