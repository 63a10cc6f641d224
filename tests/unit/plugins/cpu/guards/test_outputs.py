"""An output has as many strings as can be passed on without keeping other threads waiting."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.plugins.cpu.backend.guard_reasons import MOST_TEXTS, SUFFIX
from headrace.plugins.cpu.guards.guards import guard
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument
from headrace.testing.case import network_of
from headrace.testing.infer_request import infer_once

TILED = "g (string[n] x, int64[1] times) => (string[m] y) { y = Tile(x, times) }"
X = np.array(["a", "b"], object)


def test_an_output_with_too_many_strings_is_refused(plugin: Plugin) -> None:
    most = np.array([MOST_TEXTS // 2])
    assert infer_once(plugin, TILED, x=X, times=most)["y"].size == MOST_TEXTS
    with pytest.raises(InvalidArgument, match="more than 524,288 strings"):
        infer_once(plugin, TILED, x=X, times=most + 1)


def test_an_output_that_the_network_reads_or_gives_twice_is_guarded(plugin: Plugin) -> None:
    text = TILED.replace("(string[m] y)", "(string[m] y, bool[m] z)").replace(
        "times) }", "times) z = Equal(y, y) }"
    )
    found = infer_once(plugin, text, x=X, times=np.array([2]))
    assert found["y"].tolist() == ["a", "b"] * 2
    assert found["z"].all()


def test_an_input_that_is_an_output_has_as_many_strings(plugin: Plugin) -> None:
    text = "g (string[n] x) => (string[n] y) { y = Identity(x) }"
    with pytest.raises(InvalidArgument, match=r"layer 'y': .* more than 524,288 strings"):
        infer_once(plugin, text, x=np.full(MOST_TEXTS + 1, "a", object))


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        (TILED, True),
        (TILED.replace("string", "float"), False),
        ("g (string[n] x) => (string[n] y) { y = Identity(x) }", False),
        ("g (seq(string[n]) x) => (seq(string[n]) y) { y = Identity(x) }", False),
    ],
)
def test_only_an_output_that_may_have_too_many_strings_is_guarded(text: str, guarded: bool) -> None:
    model = network_of(text).model.clone()
    guard(model)
    assert any(SUFFIX in (node.name or "") for node in model.graph) == guarded
    assert [value.name for value in model.graph.outputs] == ["y"]
