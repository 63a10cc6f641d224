"""What each layer costs, in the network's own layers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from headrace.plugins.cpu import create_plugin
from headrace.plugins.cpu.backend import session
from headrace.plugins.cpu.backend.fusion import trace
from headrace.plugins.cpu.backend.session import Provider
from headrace.plugins.cpu.running.profiling import Profiler
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.execution.job import LayerProfile
from headrace.runtime.transform.transform import transform_network
from headrace.testing import networks
from headrace.testing.case import Case
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def plugin(scratch: Path) -> Iterator[Plugin]:
    with services() as offered:
        yield create_plugin("CPU", offered, {})


def profile(plugin: Plugin, case: Case) -> tuple[ExecutableNetwork, list[LayerProfile]]:
    loaded = plugin.load_network(Load(case.network, {"PERF_COUNT": "YES"}))
    request = InferRequest(loaded)
    request.infer(case.inputs)
    return loaded, list(request.performance_counts)


@pytest.mark.parametrize(
    "case",
    [networks.mlp(), networks.image(), networks.transformer(), networks.recurrent()],
    ids=str,
)
def test_every_layer_is_in_one_entry(plugin: Plugin, case: Case) -> None:
    loaded, layers = profile(plugin, case)
    origins = [origin for layer in layers for origin in layer.origins]
    assert len(origins) == len(set(origins))
    computed = {name for layer in loaded.layers() for name in layer.origins} - {
        layer.name for layer in case.network.layers if layer.op_type == "Constant"
    }
    assert set(origins) >= computed
    loaded.close()


def test_layers_that_were_fused_are_one_entry_in_their_order(plugin: Plugin) -> None:
    loaded, layers = profile(plugin, networks.image())
    entry = next(layer for layer in layers if "conv0" in layer.origins)
    assert entry.layer == "conv0"
    assert entry.origins == ("conv0", "norm0", "relu0")
    assert entry.op_type == "Conv"
    assert entry.device == "CPU.0"
    loaded.close()


@pytest.mark.parametrize("case", networks.control_flow(), ids=str)
def test_layers_in_bodies_have_entries_of_their_own(plugin: Plugin, case: Case) -> None:
    loaded, layers = profile(plugin, case)
    assert any("/" in layer.layer for layer in layers)
    loaded.close()


def test_what_failed_leaves_no_file_behind(plugin: Plugin, scratch: Path) -> None:
    case = networks.fragile()
    loaded = plugin.load_network(Load(case.network, {"PERF_COUNT": "YES"}))
    request = InferRequest(loaded)
    request.infer(case.inputs)
    (folder,) = scratch.iterdir()
    files = set(folder.iterdir())
    with pytest.raises(InvalidArgument):
        request.infer({**case.inputs, "at": np.array([99])})
    assert set(folder.iterdir()) == files
    loaded.close()


def test_nothing_is_written_before_somebody_asks(plugin: Plugin, scratch: Path) -> None:
    loaded = plugin.load_network(Load(networks.add().network))
    InferRequest(loaded).infer(networks.add().inputs)
    assert not list(scratch.iterdir())
    loaded.close()


def test_a_closed_network_leaves_nothing_behind(plugin: Plugin, scratch: Path) -> None:
    loaded, _ = profile(plugin, networks.add())
    assert list(scratch.iterdir())
    loaded.close()
    assert not list(scratch.iterdir())


def test_a_network_whose_rewritten_graph_cannot_be_read_is_profiled_all_the_same(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("redeclared")

    case = networks.add()
    network = transform_network(case.network)
    profiler = Profiler(network, lambda: network.model, Provider(), 1)
    monkeypatch.setattr("headrace.plugins.cpu.running.profiling.trace", refuse)
    monkeypatch.setattr("onnx.load", refuse)
    outputs, layers = profiler.profile(
        lambda opened: opened.run(["z"], dict(case.inputs), session.run_options()), "CPU.0"
    )
    assert len(outputs) == 1
    assert [layer.origins for layer in layers] == [("sum",)]
    profiler.close()


def graph(*nodes: tuple[str, str, list[str], list[str]], domain: str = "") -> ir.Graph:
    """Nodes as (name, operator, inputs, outputs); `domain` is that of nodes called ``…_nchwc``."""
    values: dict[str, ir.Value] = {}

    def value(name: str) -> ir.Value:
        return values.setdefault(name, ir.Value(name=name))

    made = [
        ir.Node(
            domain if name.endswith("_nchwc") else "",
            op_type,
            [value(each) for each in inputs],
            outputs=[value(each) for each in outputs],
            name=name,
        )
        for name, op_type, inputs, outputs in nodes
    ]
    free = [each for each in values.values() if each.producer() is None]
    return ir.Graph(free, list(made[-1].outputs), nodes=made, name="g")


def named(original: ir.Graph, rewritten: ir.Graph) -> dict[str | None, list[str | None]]:
    found = trace(original, rewritten)
    return {node.name: [each.name for each in layers] for node, layers in found.items()}


def test_a_node_that_keeps_its_result_stands_for_all_that_led_to_it() -> None:
    original = graph(
        ("product", "MatMul", ["x", "w"], ["a"]),
        ("sum", "Add", ["a", "b"], ["c"]),
        ("next", "Relu", ["c"], ["d"]),
    )
    rewritten = graph(("fused", "Gemm", ["x", "w", "b"], ["c"]), ("next", "Relu", ["c"], ["d"]))
    assert named(original, rewritten) == {"fused": ["product", "sum"], "next": ["next"]}


def test_what_was_fused_onto_a_blocked_convolution_is_counted_to_it() -> None:
    original = graph(
        ("conv0", "Conv", ["x", "w0"], ["a"]),
        ("sum", "Add", ["a", "x"], ["b"]),
        ("relu", "Relu", ["b"], ["c"]),
        ("conv1", "Conv", ["c", "w1"], ["d"]),
    )
    rewritten = graph(
        ("a_nchwc", "Conv", ["x", "r0"], ["t0"]),
        ("d_nchwc", "Conv", ["t0", "r1"], ["t1"]),
        ("ReorderOutput", "ReorderOutput", ["t1"], ["d"]),
        domain="com.microsoft.nchwc",
    )
    assert named(original, rewritten) == {
        "a_nchwc": ["conv0", "sum", "relu"],
        "d_nchwc": ["conv1"],
        "ReorderOutput": ["conv1"],
    }


def test_a_change_of_layout_before_the_first_layer_counts_for_it() -> None:
    original = graph(("conv", "Conv", ["x", "w"], ["y"]))
    rewritten = graph(
        ("ReorderInput", "ReorderInput", ["x"], ["t0"]),
        ("y_nchwc", "Conv", ["t0", "r"], ["t1"]),
        domain="com.microsoft.nchwc",
    )
    assert named(original, rewritten) == {"ReorderInput": ["conv"], "y_nchwc": ["conv"]}
