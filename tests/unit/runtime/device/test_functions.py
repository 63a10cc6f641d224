"""Devices whose layers are Python functions of whoever runs the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from headrace.runtime.device.functions import FunctionsPlugin
from headrace.runtime.errors import Internal, InvalidArgument, UnsupportedLayers
from headrace.testing.infer_request import infer_once
from headrace.testing.services import services

X = np.array([3, 1, 2], np.float32)
ENDS = "(float[N] x) => (float[N] y)"
TO_TEXT = "(float[N] x) => (string[N] y)"


def ordered(x: Any, backwards: int = 0) -> tuple[Any, Any]:
    order = np.argsort(x)
    order = order[::-1] if backwards else order
    return x[order], order


def letters(x: Any) -> list[str]:
    if x.size > 3:
        raise ValueError("more than three numbers")
    return ["abc"[int(each) - 1] for each in x]


def parted(x: Any) -> list[Any]:
    return [x[:at] for at in range(x.size)]


def spoils(x: Any) -> Any:
    x[0] = 0
    return x


@pytest.fixture
def plugin() -> Iterator[FunctionsPlugin]:
    functions: dict[str, Callable[..., Any]] = {
        "Ordered": ordered,
        "Letters": letters,
        "Parted": parted,
        "Spoils": spoils,
        "Same": lambda x: x,
        "Two": lambda x: (x, x),
    }
    with services() as offered:
        made = FunctionsPlugin("OURS", offered, {}, "headrace.test", functions)
        yield made
        made.close()


def run(plugin: FunctionsPlugin, ends: str, layers: str, x: Any = X) -> dict[str, Any]:
    return infer_once(plugin, f"m {ends} {{ {layers} }}", x=x)


def test_a_layer_is_the_function_of_its_name_with_its_attributes(plugin: FunctionsPlugin) -> None:
    ends = "(float[N] x) => (float[N] y, int64[N] z)"
    found = run(plugin, ends, "y, z = headrace.test.Ordered <backwards = 1> (x)")
    np.testing.assert_array_equal(found["y"], [3, 2, 1])
    np.testing.assert_array_equal(found["z"], [0, 2, 1])


def test_layers_run_in_order_and_outputs_have_the_declared_types(plugin: FunctionsPlugin) -> None:
    ends = "(float[N] x) => (string[N] y, double[N] a)"
    found = run(plugin, ends, "a, b = headrace.test.Ordered(x) y = headrace.test.Letters(a)")
    assert list(found["y"]) == ["a", "b", "c"]
    assert found["a"].dtype == np.float64


def test_a_function_may_give_a_sequence(plugin: FunctionsPlugin) -> None:
    found = run(plugin, "(float[N] x) => (seq(float[M]) y)", "y = headrace.test.Parted(x)")
    assert [each.tolist() for each in found["y"]] == [[], [3], [3, 1]]


def test_an_output_shares_no_memory_with_an_input(plugin: FunctionsPlugin) -> None:
    found = run(plugin, ENDS, "y = headrace.test.Same(x)")
    assert not np.shares_memory(found["y"], X)


def test_values_that_a_function_refuses_are_the_caller_s_fault(plugin: FunctionsPlugin) -> None:
    with pytest.raises(InvalidArgument, match=r"Letters.* more than three numbers"):
        run(
            plugin,
            "(float[N] x) => (string[N] y)",
            "y = headrace.test.Letters(x)",
            np.ones(4, np.float32),
        )


@pytest.mark.parametrize("layer", ["Spoils", "Two"])
def test_what_a_function_does_wrong_fails_its_request_alone(
    plugin: FunctionsPlugin, layer: str
) -> None:
    with pytest.raises((InvalidArgument, Internal, TypeError)):
        run(plugin, ENDS, f"y = headrace.test.{layer}(x)")
    np.testing.assert_array_equal(X, [3, 1, 2])
    run(plugin, ENDS, "y = headrace.test.Same(x)")


def test_layers_without_a_function_are_refused_with_the_reason(plugin: FunctionsPlugin) -> None:
    with pytest.raises(UnsupportedLayers) as caught:
        run(plugin, ENDS, "a = headrace.test.Sane(x) y = Neg(a)")
    reasons = [each.reason for each in caught.value.layers]
    assert reasons[0] == "there is no such function; did you mean 'Same'?"
    assert "the domain 'headrace.test' alone" in reasons[1]
