"""Custom operators as ONNX local functions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.runtime.errors import InvalidArgument, InvalidModel
from headrace.runtime.intake.limits import Limits
from headrace.runtime.network import extension
from headrace.runtime.network.extension import merge_functions, read_functions
from headrace.testing.case import network_of
from tests.support.model_zoo import function, model, node, run, value


def library(*functions: onnx.FunctionProto) -> bytes:
    nodes = [node("Identity", ["x"], ["y"])]
    proto = model(nodes, [value("x")], [value("y")], functions=functions, domains=["f"])
    return proto.SerializeToString()


def caller(name: str = "twice", **more: Any) -> onnx.ModelProto:
    nodes = [node(name, ["x"], ["y"], domain="f")]
    return model(nodes, [value("x")], [value("y")], domains=["f"], **more)


NEGATE = [node("Neg", ["a"], ["b"])]
TWICE = function("twice", [node("Add", ["a", "a"], ["b"])])
FOUR_TIMES = function(
    "four_times", [node("twice", ["a"], ["m"], domain="f"), node("twice", ["m"], ["b"], domain="f")]
)
X = {"x": np.ones((2, 3), np.float32)}


def test_the_functions_of_a_model_are_read() -> None:
    found = read_functions(library(TWICE, FOUR_TIMES))
    assert [each.identifier() for each in found] == [("f", "twice", ""), ("f", "four_times", "")]


def test_a_model_of_functions_needs_no_graph() -> None:
    proto = onnx.ModelProto.FromString(library(TWICE))
    proto.ClearField("graph")
    assert len(read_functions(proto.SerializeToString())) == 1


def test_a_network_gets_the_functions_that_it_runs_and_those_that_these_run() -> None:
    functions = read_functions(library(TWICE, FOUR_TIMES, function("other", NEGATE)))
    merged = merge_functions(network_of(caller("four_times")), functions)
    assert {key[1] for key in merged.model.functions} == {"twice", "four_times"}
    assert run(merged, X)["y"].tolist() == [[4.0] * 3] * 2


def test_a_network_that_runs_none_is_returned_as_it_is() -> None:
    it = network_of(caller("unknown"))
    assert merge_functions(it, read_functions(library(TWICE))) is it


def test_the_original_network_is_not_touched() -> None:
    it = network_of(caller())
    before = it.to_bytes()
    merge_functions(it, read_functions(library(TWICE)))
    assert it.to_bytes() == before


def test_a_networks_own_function_comes_before_an_extension() -> None:
    own = function("twice", [node("Neg", ["a"], ["b"])])
    it = network_of(caller(functions=[own]))
    assert run(merge_functions(it, read_functions(library(TWICE))), X)["y"][0, 0] == -1


def test_one_extension_serves_many_networks() -> None:
    functions = read_functions(library(TWICE))
    for _ in range(2):
        assert run(merge_functions(network_of(caller()), functions), X)["y"][0, 0] == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no model", "not a serialised ONNX model"),
        (library(), "no local functions"),
        (library(function("Relu", NEGATE, domain="")), "ONNX's own domain"),
        (library(function("Relu", NEGATE, domain="ai.onnx.ml")), "ONNX's own domain"),
        (library(function("f", [node("f", ["a"], ["b"], domain="f")])), "calls itself"),
    ],
)
def test_what_is_no_extension_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_functions(data)
    assert caught.value.field == "functions"
    assert reason in caught.value.message


def test_a_function_without_a_model_around_it_is_refused_with_what_to_send() -> None:
    data = function("f0", [node("Relu", ["a"], ["b"])]).SerializeToString()
    with pytest.raises(InvalidArgument, match=r"a FunctionProto; put it into .* a ModelProto"):
        read_functions(data)


@pytest.mark.parametrize("data", [b"abc", b"\x0a\x7f", b"\xff" * 12])
def test_the_byte_that_is_not_valid_is_one_of_the_extensions(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"the bytes are not valid near byte \d") as caught:
        read_functions(data)
    (place,) = re.findall(r"near byte (\d+)", caught.value.message)
    assert int(place) < len(data)


def test_extensions_cannot_make_a_network_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = read_functions(library(TWICE, FOUR_TIMES))
    network, few = network_of(caller("four_times")), Limits(inlined_nodes=1)
    monkeypatch.setattr(extension, "Limits", lambda: few)
    with pytest.raises(InvalidModel, match="inlined"):
        merge_functions(network, functions)
