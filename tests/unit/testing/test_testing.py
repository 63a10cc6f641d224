"""The conformance suite's own tools: they let what is right pass, and only that."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from headrace.plugins import template
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.testing import DeviceConformance, networks
from headrace.testing.case import Case
from headrace.testing.compare import assert_same, assert_same_outputs
from headrace.testing.infer_request import InferRequest
from headrace.testing.leaks import no_leaks
from headrace.testing.occupied import PATIENCE_SECONDS, occupied
from headrace.testing.services import services

CASES = (
    networks.add(),
    networks.mlp(),
    networks.image(),
    networks.transformer(),
    networks.recurrent(),
    networks.divide(),
    networks.relu_relu(),
    networks.leftover(),
    networks.string_join(),
    networks.string_identity(),
    *networks.control_flow(),
    networks.sequence(),
    networks.optional(),
    networks.optional(present=False),
    networks.local_function(),
    networks.fragile(),
    networks.typed(np.int8, "int8"),
    networks.typed(np.bool_, "bool"),
)


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with services() as offered:
        yield template.create_plugin("TEMPLATE", offered, {})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_tiny_network_is_right_and_its_inputs_fit(case: Case) -> None:
    onnx.checker.check_model(case.model, full_check=True)
    assert case.expected()
    assert len(set(case.network.layer_names)) == len(case.network.layers)


def test_random_numbers_are_the_same_each_time_and_differ_with_the_seed() -> None:
    assert np.array_equal(networks.random(3), networks.random(3))
    assert not np.array_equal(networks.random(3), networks.random(3, seed=1))


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (np.array([1.0], np.float32), np.array([1.1], np.float32)),
        (np.array([1.0], np.float32), np.array([1.0], np.float64)),
        (np.array([1.0], np.float32), np.array([[1.0]], np.float32)),
        (np.array([1.0], np.float32), np.array([np.nan], np.float32)),
        (np.array([1.0], np.float32), np.array([np.inf], np.float32)),
        (np.array([1], np.int64), np.array([2], np.int64)),
        (np.array([1], np.int64), np.array([1], np.int32)),
        (networks.strings("a"), networks.strings("b")),
        (np.array(["a"]), networks.strings("a")),
        ([np.array([1], np.float32)], np.array([1], np.float32)),
        (np.array([1], np.float32), [np.array([1], np.float32)]),
        ([np.array([1], np.float32)], [np.array([1], np.float32), np.array([1], np.float32)]),
        (None, np.array([1], np.float32)),
        (np.array([1], np.float32), None),
        (1.0, np.float32(1.0)),
    ],
)
def test_values_that_differ_are_told_apart(actual: object, expected: object) -> None:
    with pytest.raises(AssertionError):
        assert_same(actual, expected, tolerance=1e-3)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (np.array([1.0, 1e-6], np.float32), np.array([1.0001, 0.0], np.float32)),
        (np.array([np.nan, np.inf], np.float32), np.array([np.nan, np.inf], np.float32)),
        (np.array([1 + 1j], np.complex64), np.array([1 + 1j], np.complex64)),
        (networks.strings("a", b"b"), np.array(["a", "b"])),
        ([np.array([1], np.float32), []], [np.array([1], np.float32), []]),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)),
        (None, None),
    ],
)
def test_values_that_are_the_same_but_for_rounding_pass(actual: object, expected: object) -> None:
    assert_same(actual, expected, tolerance=1e-3)


def test_an_output_too_many_or_too_few_is_told_apart() -> None:
    with pytest.raises(AssertionError):
        assert_same_outputs({"x": np.array([1], np.float32)}, {}, tolerance=1.0)
    with pytest.raises(AssertionError):
        assert_same_outputs({}, {"x": np.array([1], np.float32)}, tolerance=1.0)


def test_a_file_descriptor_that_stays_open_is_found(tmp_path: Path) -> None:
    descriptor = 0
    try:
        with pytest.raises(AssertionError, match="file descriptors left"), no_leaks():
            descriptor = os.open(tmp_path / "file", os.O_CREAT)
    finally:
        os.close(descriptor)


def test_a_thread_that_runs_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.testing.leaks._PATIENCE_SECONDS", 0.01)
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="runs on")
    try:
        with pytest.raises(AssertionError, match="runs on"), no_leaks():
            thread.start()
    finally:
        end.set()
        thread.join()


def test_an_occupied_device_runs_nothing_until_it_is_released(plugin: Plugin) -> None:
    case = networks.add()
    network = plugin.load_network(Load(case.network))
    request = InferRequest(network)
    with occupied(network) as release:
        request.start_async(case.inputs)
        assert not request.wait(0.02)
        release()
        assert request.wait(PATIENCE_SECONDS)


def test_the_suite_asks_for_a_plugin() -> None:
    with services() as offered, pytest.raises(NotImplementedError, match="'plugin'"):
        vars(DeviceConformance.__mro__[-2])["plugin"].__wrapped__(None, offered)
