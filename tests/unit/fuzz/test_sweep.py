"""What the sweep of ranks tries: every input of every case in wrong ranks and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headrace.testing.backend_cases.cases import BackendCase, collect
from tools.fuzz.devices.__main__ import main
from tools.fuzz.devices.sweep.further_cases import further_cases
from tools.fuzz.devices.sweep.ranks import RankSweep, forms
from tools.fuzz.devices.variant import Variant
from tools.fuzz.devices.worker import reference_answer

UNSOUND = "tests.support.unsound_device:create_plugin"


@pytest.fixture(scope="module")
def cases() -> list[BackendCase]:
    return collect(
        ["test_add*", "test_gather_*", "test_sequence_insert_at_*", "test_training_dropout*"]
    )


def variants(cases: Sequence[BackendCase]) -> list[Variant]:
    sweep = RankSweep(cases)
    return [sweep.variant(number) for number in range(len(sweep))]


def shapes(value: Any) -> list[Any]:
    return [
        [part.shape for part in each] if isinstance(each, list) else each.shape
        for each in forms(value).values()
    ]


def test_an_array_takes_other_ranks_and_lengths() -> None:
    assert shapes(np.zeros((2, 3))) == [
        (2, 3),
        (),
        (0,),
        (6,),
        (1, 2, 3),
        (2, 3, 1),
        (3,),
        (3, 3),
        (1, 3),
        (0, 3),
        (2, 4),
        (2, 2),
        (2, 0),
    ]
    assert shapes(np.zeros(())) == [(), (0,), (1,)]
    assert shapes(np.array(["a"], object)) == [(1,), (), (0,), (1, 1), (2,)]


def test_a_sequence_loses_its_elements_or_has_another_first_one() -> None:
    assert shapes([np.zeros(()), np.zeros(2)])[:3] == [[(), (2,)], [], [(), (2,)]]
    assert [*forms(None).values()] == [None]


def test_the_case_itself_is_among_the_requests(cases: list[BackendCase]) -> None:
    for each in variants(cases):
        if "as it is" in each.mutations[0]:
            answer = reference_answer(each)
            assert answer.replies[0].outputs is not None, each.mutations


def test_each_way_is_taken(cases: list[BackendCase]) -> None:
    for each in variants([case for case in cases if case.name == "test_add"]):
        graph = each.proto.graph
        declared = [port.type.tensor_type.HasField("shape") for port in graph.input]
        way = each.mutations[1]
        assert any(declared) == (way in ("ranks", "symbols", "body"))
        assert [node.op_type for node in graph.node] == (["If"] if way == "body" else ["Add"])
        assert len(graph.initializer) == (way == "constant")
        assert len({*map(len, each.feeds)}) == 1


def test_equal_sizes_have_one_symbol(cases: list[BackendCase]) -> None:
    given = [each for each in variants(cases) if each.mutations[1] == "symbols"]
    assert given
    for each in given:
        symbols = {
            port.name: [dim.dim_param for dim in port.type.tensor_type.shape.dim]
            for port in each.proto.graph.input
        }
        first = {name: value for name, value in each.feeds[0].items() if name in symbols}
        for name, value in first.items():
            if isinstance(value, np.ndarray):
                assert symbols[name] == [f"size_{size}" for size in value.shape]


@pytest.mark.long
def test_layers_that_a_backend_fuses_are_swept_too() -> None:
    cases = further_cases(["fusion_*"])
    operators = {case.operator for case in cases}
    assert {"Add+LayerNormalization", "DequantizeLinear+MatMul", "Conv+Relu"} <= operators
    assert {each.origin for each in variants(cases)} == {case.name for case in cases}
    answers = [reference_answer(first(case)) for case in cases]
    refused = [each for each in answers if any(reply.outputs is None for reply in each.replies)]
    assert all(each.replies for each in answers)
    assert len(refused) < 10  # where the layer between two others changes the rank


def first(case: BackendCase) -> Variant:
    return Variant("", case.name, case.operator, case.model, (case.data_sets[0][0],), ())


def test_cases_that_differ_in_values_and_sizes_alone_are_taken_once() -> None:
    found = {each.origin for each in variants(collect(["test_add*"]))}
    assert {"test_add", "test_add_uint8"} <= found
    assert "test_add_bcast" in found  # of other ranks
    assert len({each.origin for each in variants(collect(["test_nonmaxsuppression_*"]))}) == 2


def test_cases_with_random_numbers_are_left_out(cases: list[BackendCase]) -> None:
    origins = {each.origin for each in variants(cases)}
    random = {case.name for case in cases if case.random}
    assert random
    assert origins
    assert not origins & random


def test_the_sweep_has_operators_that_onnx_has_no_cases_of() -> None:
    operators = {case.operator for case in further_cases()}
    assert operators >= {"ai.onnx.ml.SVMRegressor", "com.microsoft.FusedMatMul", "MaxRoiPool"}
    names = [case.name for case in further_cases(["*.SVM*"])]
    assert len(names) == 4
    assert all(".SVM" in name for name in names)


@pytest.mark.long
def test_a_sweep_finds_a_device_that_ends(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--device",
        "UNSOUND",
        "--factory",
        UNSOUND,
        "--second",
        "NONE",
        "--sweep",
        "ranks",
    ]
    assert main([*arguments, "--cases", "test_abs", "--count", "1"]) == 1
    printed = capsys.readouterr().out
    assert "Abs: process ended" in printed
    assert "--replay ranks:0" in printed
    assert "sweep of ranks" in printed


@pytest.mark.long
def test_a_variant_of_the_sweep_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--device", "TEMPLATE", "--second", "NONE", "--cases", "test_relu"]
    assert main([*arguments, "--replay", "ranks:0"]) == 0
    assert "ranks:0 test_relu (x as it is or a scalar" in capsys.readouterr().out
