"""ONNX's backend cases: which there are, how they are judged, run, and reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.runtime.errors import Unavailable
from headrace.testing.backend_cases.__main__ import main
from headrace.testing.backend_cases.cases import INEXACT, BackendCase, collect
from headrace.testing.backend_cases.expectation import Expectation, path_of
from headrace.testing.backend_cases.outcome import CaseOutcome, Result, difference, same_form
from headrace.testing.backend_cases.pool import CaseResults, run_cases
from headrace.testing.backend_cases.table import markdown
from headrace.testing.backend_cases.worker import DeviceUnderTest

REPOSITORY = Path(__file__).parents[3]
EXPECTATIONS = REPOSITORY / "tests/conformance/backend_cases"
UNSOUND = "tests.support.unsound_device"
DEVICE = DeviceUnderTest("UNSOUND", {}, f"{UNSOUND}:create_plugin")


@pytest.fixture(scope="module")
def cases() -> dict[str, BackendCase]:
    return {case.name: case for case in collect()}


# -- which there are --


def test_a_case_has_a_name_of_its_own_and_data_for_its_ports(
    cases: dict[str, BackendCase],
) -> None:
    assert len(cases) == len(collect()) >= 2000
    for case in cases.values():
        assert case.data_sets
        for inputs, outputs in case.data_sets:
            for value in (*inputs.values(), *outputs.values()):
                assert value is None or isinstance(value, np.ndarray | list)


def test_cases_are_collected_after_a_time_out_broke_that_off() -> None:
    program = """
import importlib
import onnx.backend.test.case.node as node
from headrace.testing.backend_cases.cases import node_tests
def few(package):
    for name in ("abs", "neg", "relu"):
        importlib.import_module(f"{package.__name__}.{name}")
def late(operator, inputs, outputs, name, **options):
    if name == "test_neg":
        raise TimeoutError
    expect(operator, inputs, outputs, name, **options)
expect, node.expect, node.import_recursive = node.expect, late, few
try:
    node_tests()
except TimeoutError:
    node.expect = expect
names = [case.name for case in node_tests() if "expanded" not in case.name]
assert names == ["test_abs", "test_neg_example", "test_neg", "test_relu"], names
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert not done.returncode, done.stderr.decode()


def test_every_kind_is_there(cases: dict[str, BackendCase]) -> None:
    kinds = {case.kind for case in cases.values()}
    assert kinds == {"node", "simple", "pytorch-converted", "pytorch-operator", "real"}


def test_an_expanded_case_belongs_to_the_operator_that_was_expanded(
    cases: dict[str, BackendCase],
) -> None:
    assert cases["test_relu"].operator == cases["test_relu_expanded_ver18"].operator == "Relu"
    assert cases["test_ai_onnx_ml_binarizer"].operator == "ai.onnx.ml.Binarizer"
    assert {case.operator for case in cases.values() if case.kind != "node"} == {""}


def test_patterns_choose_cases() -> None:
    assert [case.name for case in collect(["test_si?", "test_AvgPool1d"])] == [
        "test_AvgPool1d",
        "test_sin",
    ]


def test_only_what_draws_random_numbers_is_random(cases: dict[str, BackendCase]) -> None:
    random = {case.operator for case in cases.values() if case.random}
    assert random == {"Bernoulli", "Dropout"}
    assert not cases["test_dropout_default"].random
    assert cases["test_training_dropout"].random


@pytest.mark.parametrize("name", [name for name in INEXACT if "dft" in name])
def test_an_inexact_case_expects_what_is_off_by_more_than_cases_allow(
    cases: dict[str, BackendCase], name: str
) -> None:
    case = cases[name]
    ((inputs, outputs),) = case.data_sets
    x = inputs["x"].astype(np.float64)
    result = np.fft.ifft(x[..., 0] + 1j * x[..., 1], axis=1)
    exact = np.stack([result.real, result.imag], -1)
    off = np.abs(exact - outputs["y"])[np.abs(exact) < 1e-9]
    assert 1e-7 < off.max() <= INEXACT[name] == case.atol


@pytest.mark.parametrize("name", [name for name in INEXACT if "attention" in name])
def test_an_inexact_attention_expects_what_is_off_by_more_than_a_rounding(
    cases: dict[str, BackendCase], name: str
) -> None:
    case = cases[name]
    ((inputs, outputs),) = case.data_sets
    q, k, v = (inputs[each].astype(np.float64) for each in "QKV")
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if "causal" in name:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores)
    exact = weights / weights.sum(-1, keepdims=True) @ v
    off = np.abs(exact - outputs["Y"].astype(np.float64))
    assert (off > np.spacing(np.abs(outputs["Y"]))).any()
    assert off.max() <= INEXACT[name] == case.atol


# -- how they are judged --

ONE = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("actual", "kind"),
    [
        (ONE, None),
        (ONE + np.float32(5e-4), None),
        (ONE + np.float32(2e-3), "values"),
        (ONE * np.float32("nan"), "values"),
        (ONE[:1], "shape"),
        (ONE.astype(np.float64), "dtype"),
        ([ONE], "type"),
        (None, "type"),
    ],
)
def test_an_array_is_judged_by_dtype_shape_and_values(actual: Any, kind: str | None) -> None:
    found = difference({"y": actual}, {"y": ONE}, 1e-3, 1e-7)
    assert (found and found[0]) == kind


def test_what_is_missing_is_a_difference() -> None:
    assert difference({}, {"y": ONE}, 0, 0) == ("no output", "y is missing")


def test_nan_is_right_where_it_is_expected() -> None:
    nan = np.array([np.nan, np.inf, -np.inf])
    assert difference({"y": nan}, {"y": nan}, 0, 0) is None


def test_sequences_are_judged_element_by_element() -> None:
    assert difference({"y": [ONE, ONE]}, {"y": [ONE, ONE]}, 0, 0) is None
    assert difference({"y": [ONE]}, {"y": [ONE, ONE]}, 0, 0) == (
        "shape",
        "y has 1 elements, not 2",
    )
    found = difference({"y": [ONE, 2 * ONE]}, {"y": [ONE, ONE]}, 0, 0)
    assert found is not None
    assert found[1].startswith("y[1]: 2 of 2 elements differ")


def test_strings_are_equal_however_they_are_spelled() -> None:
    texts = np.array(["a", "b"], object)
    assert difference({"y": np.array([b"a", "b"], object)}, {"y": texts}, 0, 0) is None
    assert difference({"y": np.array(["a", "c"], object)}, {"y": texts}, 0, 0) is not None


def test_integers_are_equal_within_the_same_error() -> None:
    large = np.array([2**62])
    assert difference({"y": large}, {"y": large}, 0, 0) is None
    assert difference({"y": large - 2**40}, {"y": large}, 0, 0) is not None


def test_the_form_is_that_of_all_but_the_numbers() -> None:
    assert same_form({"y": 5 * ONE}, {"y": ONE})
    assert not same_form({"y": ONE[:1]}, {"y": ONE})


# -- how they are run --


@pytest.fixture(scope="module")
def run() -> CaseResults:
    names = ["abs", "exp", "sin", "cos", "tan", "relu", "sinh", "gradient_of_add"]
    chosen = collect([f"test_{name}" for name in names])
    return run_cases(DEVICE, chosen, jobs=2)


def test_each_case_has_its_outcome_whatever_the_device_does(run: CaseResults) -> None:
    found = {result.case.removeprefix("test_"): result for result in run.results}
    assert {case: result.outcome for case, result in found.items()} == {
        "abs": CaseOutcome.CRASHED,
        "exp": CaseOutcome.FAILED,
        "sin": CaseOutcome.WRONG,
        "cos": CaseOutcome.WRONG,
        "tan": CaseOutcome.WRONG,
        "sinh": CaseOutcome.PASSED,
        "relu": CaseOutcome.PASSED,
        "gradient_of_add": CaseOutcome.REFUSED,
    }
    reasons = {case: found[case].reason for case in ("sin", "cos", "tan", "abs", "exp")}
    assert reasons == {
        "sin": "values",
        "cos": "dtype",
        "tan": "shape",
        "abs": "SIGABRT",
        "exp": "RuntimeError: out of order",
    }


def test_a_case_that_hangs_is_given_up() -> None:
    (result,) = run_cases(DEVICE, collect(["test_neg"]), limit_seconds=0.5).results
    assert (result.outcome, result.reason) == (CaseOutcome.TIMED_OUT, "after 0.5 s")


def test_what_was_claimed_is_known_even_of_a_crash(run: CaseResults) -> None:
    unclaimed = [result.case for result in run.results if not result.claimed]
    assert unclaimed == ["test_gradient_of_add"]


def test_a_refusal_is_no_fault_and_anything_else_but_passing_is(run: CaseResults) -> None:
    faults = {result.case for result in run.results if result.is_fault}
    assert faults == {f"test_{name}" for name in ("abs", "exp", "sin", "cos", "tan")}


def test_what_was_not_claimed_may_be_refused_and_not_be_wrong() -> None:
    assert not Result("case", CaseOutcome.REFUSED, claimed=False).is_fault
    assert Result("case", CaseOutcome.REFUSED, claimed=True).is_fault
    assert Result("case", CaseOutcome.WRONG, claimed=False).is_fault
    assert not Result("case", CaseOutcome.RANDOM, claimed=True).is_fault


@pytest.mark.parametrize(
    ("factory", "reason"),
    [("create_none", "the driver is missing"), ("create_dead", "did not start: crashed")],
)
def test_a_device_that_does_not_start_says_why(factory: str, reason: str) -> None:
    device = DeviceUnderTest("UNSOUND", {}, f"{UNSOUND}:{factory}")
    with pytest.raises(Unavailable, match=reason):
        run_cases(device, collect(["test_abs"]), jobs=1)


# -- how they are reported --


def test_an_expectation_is_read_as_it_was_written(run: CaseResults, tmp_path: Path) -> None:
    expected = Expectation.of(run)
    expected.write(tmp_path / "folder" / "UNSOUND.toml")
    assert Expectation.read(tmp_path / "folder" / "UNSOUND.toml") == expected
    assert expected.passed == 2
    assert expected.differences(run.results) == []


def test_a_difference_says_what_was_expected_and_what_came(run: CaseResults) -> None:
    others = {"test_relu": ("refused", "no kernel"), "test_gradient_of_add": ("refused", "other")}
    lines = Expectation("UNSOUND", "", onnx.__version__, 8, others).differences(run.results)
    assert "test_sin: expected passed, got wrong (values)" in lines
    assert not any("gradient" in line for line in lines)  # for another reason, but refused


def test_a_pass_that_was_not_expected_is_told_and_is_no_difference(run: CaseResults) -> None:
    expected = Expectation("UNSOUND", "", onnx.__version__, 8, {"test_relu": ("refused", "none")})
    (line,) = expected.unexpected_passes(run.results)
    assert line == "test_relu: expected refused (none), got passed"
    assert not any("test_relu" in each for each in expected.differences(run.results))


HALF = {"test_relu": ("refused", "no kernel"), "test_sin": ("refused", "no kernel")}


@pytest.mark.parametrize(
    ("condition", "capabilities", "refused"),
    [
        ("FP16", ("FP16", "FP32"), True),
        ("FP16", ("FP32",), False),
        ("not FP16", ("FP16", "FP32"), False),
        ("not FP16", ("FP32",), True),
    ],
)
def test_what_is_expected_may_depend_on_the_processor(
    condition: str, capabilities: tuple[str, ...], refused: bool
) -> None:
    known = Expectation("X", "", "", 8, HALF, {"test_relu": condition}).on(capabilities)
    assert ("test_relu" in known.others, "test_sin" in known.others) == (refused, True)
    refusal = Result("test_relu", CaseOutcome.REFUSED, claimed=False)
    passed = Result("test_relu", CaseOutcome.PASSED, claimed=True)
    assert bool(known.differences([refusal])) == (not refused)
    assert bool(known.unexpected_passes([passed])) == refused


def test_an_update_keeps_what_is_known_of_other_processors(tmp_path: Path) -> None:
    before = Expectation("X", "", "", 2, HALF, {"test_relu": "FP16", "test_sin": "FP32"})
    results = [Result(case, CaseOutcome.PASSED, claimed=True) for case in HALF]
    updated = Expectation.of(CaseResults("X", "", tuple(results), 0.0, ("FP32",)), before)
    assert updated.others == {"test_relu": ("refused", "no kernel")}
    assert updated.where == {"test_relu": "FP16"}
    updated.write(tmp_path / "X.toml")
    assert Expectation.read(tmp_path / "X.toml") == updated


def test_a_file_is_named_after_its_device() -> None:
    assert path_of("HETERO:A.1,[MULTI:B(2)]", Path("x")) == Path("x/HETERO-A.1--MULTI-B-2.toml")


@pytest.mark.parametrize("path", sorted(EXPECTATIONS.glob("*.toml")), ids=lambda path: path.stem)
def test_what_is_expected_of_a_device_has_no_fault(
    path: Path, cases: dict[str, BackendCase]
) -> None:
    expected = Expectation.read(path)
    assert path == path_of(expected.device, EXPECTATIONS)
    assert {outcome for outcome, _ in expected.others.values()} <= {"refused", "random"}
    assert all(cases[case].random for case, (it, _) in expected.others.items() if it == "random")


def test_the_published_table_is_that_of_the_expectations(cases: dict[str, BackendCase]) -> None:
    known = [Expectation.read(path) for path in EXPECTATIONS.glob("*.toml")]
    published = (REPOSITORY / "docs/results/conformance.md").read_text(encoding="utf-8")
    assert published == markdown(list(cases.values()), known), "run make conformance"


@pytest.mark.long
def test_the_command_line_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--device", "UNSOUND", "--factory", f"{UNSOUND}:create_plugin", "--jobs", "1"]
    common += ["--cases", "test_relu", "--cases", "test_sin"]
    assert main(common) == 1
    assert "UNSOUND test_sin: wrong: values" in capsys.readouterr().out
    expected = Expectation("UNSOUND", "", "", 2, {"test_relu": ("refused", "no kernel")})
    expected.write(path_of("UNSOUND", tmp_path))
    assert main([*common, "--expectations", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "note: UNSOUND test_relu: expected refused (no kernel), got passed" in told
    assert "\nUNSOUND test_sin: expected passed, got wrong (values)" in told


@pytest.mark.long
@pytest.mark.parametrize(("case", "status"), [("test_relu", 0), ("test_sin", 1)])
def test_a_device_of_which_nothing_is_known_is_held_to_what_it_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, status: int
) -> None:
    device = ["--device", "UNSOUND", "--factory", f"{UNSOUND}:create_plugin", "--jobs", "1"]
    assert main([*device, "--cases", case, "--expectations", str(tmp_path)]) == status
    assert "UNSOUND is compared with nothing" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--update"],
        ["--update", "--expectations", "x", "--cases", "test_relu"],
        ["--table", "x"],
        ["--cases", "no such case"],
        ["--config", "KEY"],
    ],
)
def test_wrong_usage_is_said(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--device", "CPU", *arguments])
