"""A device inside its worker."""

from __future__ import annotations

import gc
import mmap
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from headrace.plugins.template.executable_network import TemplateNetwork
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.isolation.worker.device import WorkerCall, WorkerDevice
from headrace.runtime.system import garbage
from headrace.runtime.transform.options import NetworkOptions, options_to_json
from headrace.testing.case import parse


def test_a_network_that_cannot_be_described_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[TemplateNetwork] = []

    def metrics(network: TemplateNetwork) -> Mapping[str, Any]:
        raise ValueError("a plugin's bug")

    monkeypatch.setattr(TemplateNetwork, "metrics", metrics)
    monkeypatch.setattr(TemplateNetwork, "_close", lambda network: closed.append(network))
    model = parse("g (float[n] x) => (float[n] y) { y = Relu(x) }").SerializeToString()
    path = "tests.support.crashing_device:create_plugin"
    with closing(WorkerDevice("FRAGILE", path, {}, lambda _: None)) as device:
        arguments = {"number": 1, "config": {}, "options": options_to_json(NetworkOptions())}
        call = WorkerCall(arguments, [memoryview(model)], CancelToken())
        with pytest.raises(ValueError, match="bug"):
            device.load(call)
        assert len(closed) == 1
        assert device._networks == {}


DEVICES = {"cpu": "onnxruntime", "openvino": "openvino", "opencl": "tinygrad", "template": "onnx"}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[WorkerDevice]:
    name = str(request.param)
    if find_spec(DEVICES[name]) is None:
        pytest.skip(f"{DEVICES[name]} is not installed")
    path = f"headrace.plugins.{name}:create_plugin"
    with closing(WorkerDevice(name.upper(), path, {}, lambda _: None)) as device:
        yield device


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No look for garbage is made or asked for: it would stop every thread."""
    asked: list[bool] = []
    monkeypatch.setattr(garbage, "look_at_all", lambda: asked.append(True))
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    assert not asked


def given(last: str, rows: str = "N") -> tuple[WorkerCall, weakref.ref[mmap.mmap]]:
    """A call with a network of 4 MiB of weights in a mapped file, and the file."""
    ports = f"(float[{rows},1024] x) => (float[{rows},1024] y)"
    text = f"g {ports} {{ h = MatMul(x, w) y = {last}(h) }}"
    data = parse(text, {"w": np.ones((1024, 1024), np.float32)}).SerializeToString()
    file = mmap.mmap(-1, len(data))
    file.write(data)
    arguments = {"number": 1, "config": {}, "options": options_to_json(NetworkOptions())}
    return WorkerCall(arguments, [memoryview(file)], CancelToken()), weakref.ref(file)


@pytest.mark.usefixtures("nobody_looks")
def test_the_file_of_an_unloaded_network_is_gone(device: WorkerDevice) -> None:
    call, file = given("Relu")
    device.load(call)
    device.unload(WorkerCall({"number": 1}, [], CancelToken()))
    del call
    assert file() is None


@pytest.mark.usefixtures("nobody_looks")
def test_the_file_of_a_network_that_was_asked_about_is_gone(device: WorkerDevice) -> None:
    call, file = given("Relu")
    assert device.query(call)["supported"]
    del call
    assert file() is None


@pytest.mark.usefixtures("nobody_looks")
def test_the_file_of_a_network_that_does_not_load_is_gone(device: WorkerDevice) -> None:
    call, file = given("Unknown")
    with pytest.raises(UnsupportedLayers):
        device.load(call)
    del call
    assert file() is None


@pytest.mark.usefixtures("nobody_looks")
def test_the_file_of_a_network_that_openvino_has_compiled_is_gone_though_it_runs() -> None:
    if find_spec("openvino") is None:
        pytest.skip("openvino is not installed")
    path = "headrace.plugins.openvino:create_compiling"
    with closing(WorkerDevice("OPENVINO", path, {}, lambda _: None)) as device:
        call, file = given("Relu", "2")
        device.load(call)
        del call
        assert file() is None
