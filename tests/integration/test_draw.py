"""``headrace query --svg`` against a real server: what stands in the picture that comes out."""

from __future__ import annotations

import shutil
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.client.cli.drawing import colours
from headrace.program import main
from tests.integration.harness import Server
from tests.support.dot_text import parse
from tests.support.manual import commands

pytestmark = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")

PAGE = "docs/use/command-line.md"
SVG = "{http://www.w3.org/2000/svg}"
TITLE = "{http://www.w3.org/1999/xlink}title"


@dataclass
class Drawn:
    """One box, frame or line of a picture: what is written on it, and how it looks."""

    key: str
    texts: list[str]
    fill: str
    tooltip: str

    @classmethod
    def of(cls, group: ElementTree.Element) -> Drawn:
        shape = next(each for each in group.iter() if "fill" in each.attrib)
        texts = [(each.text or "").strip() for each in group.iter(f"{SVG}text")]
        tooltip = next(each.get(TITLE, "") for each in group.iter(f"{SVG}a"))
        return cls(group.get("id", ""), texts, shape.get("fill", "").upper(), tooltip)


class Picture:
    """An SVG of ours, read back."""

    def __init__(self, path: Path) -> None:
        self.root = ElementTree.parse(path).getroot()
        self.texts = [(each.text or "").strip() for each in self.root.iter(f"{SVG}text")]

    def drawn(self, kind: str) -> list[Drawn]:
        """In the order of the file, such as ``cluster subgraph``."""
        return [Drawn.of(each) for each in self.root.iter(f"{SVG}g") if each.get("class") == kind]


def residual_network(blocks: int, odd: str = "") -> onnx.ModelProto:
    """Convolutions with branches around them, float32[1,3,16,16] → float32[1,10]; the layer named
    `odd` is of an operator that nobody knows."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def add(op_type: str, name: str, *inputs: str, **attributes: Any) -> str:
        domain = "nobody" if name == odd else ""
        op_type = "Foo" if name == odd else op_type
        nodes.append(
            helper.make_node(op_type, inputs, [f"{name}:0"], name, domain=domain, **attributes)
        )
        return f"{name}:0"

    def weight(name: str, *shape: int) -> str:
        values = random.normal(0, 0.1, shape).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(name: str, x: str, channels: int) -> str:
        kernel = weight(f"{name}.w", 8, channels, 3, 3)
        return add("Conv", name, x, kernel, pads=[1, 1, 1, 1])

    x = conv("stem", "image", 3)
    for block in range(blocks):
        branch = add("Relu", f"{block}/relu", conv(f"{block}/conv", x, 8))
        x = add("Add", f"{block}/add", branch, x)
    x = add("Flatten", "flatten", add("GlobalAveragePool", "pool", x))
    nodes.append(helper.make_node("MatMul", [x, weight("fc.w", 8, 10)], ["scores"], "fc"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "residual",
        [value("image", TensorProto.FLOAT, [1, 3, 16, 16])],
        [value("scores", TensorProto.FLOAT, [1, 10])],
        weights,
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("nobody", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def names(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in model.graph.node]


def headrace(server: Server, folder: Path, *arguments: str) -> None:
    """Runs the command in `folder`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HEADRACE_SERVER", server.address)
        patch.setattr(sys, "argv", ["headrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code


def draw(server: Server, folder: Path, model: onnx.ModelProto, *arguments: str) -> Picture:
    onnx.save(model, folder / "model.onnx")
    headrace(server, folder, "query", "model.onnx", "--svg", "out.svg", *arguments)
    return Picture(folder / "out.svg")


def require(server: Server, *devices: str) -> None:
    missing = set(devices) - set(server.devices())
    if missing:
        pytest.skip(f"not up on this server: {', '.join(sorted(missing))}")


def affinities(names: list[str], device: str) -> list[str]:
    return [each for name in names for each in ("--affinity", f"{name}={device}")]


def test_a_plain_device_is_one_frame(server: Server, device: str, tmp_path: Path) -> None:
    model = residual_network(2)
    found = draw(server, tmp_path, model, "--device", device)
    (frame,) = found.drawn("cluster subgraph")
    assert frame.texts == [f"subgraph 1 · {device} · 10 layers"]
    layers = found.drawn("node layer")
    assert sorted(layer.texts[0] for layer in layers) == sorted(names(model))
    assert {layer.fill for layer in layers} == {colours.of_device(0).fill}
    assert not found.drawn("edge cut")
    assert f"model.onnx on {device}" in found.texts


def test_an_unsupported_layer_is_red_with_its_reason(server: Server, tmp_path: Path) -> None:
    found = draw(server, tmp_path, residual_network(2, odd="0/conv"), "--device", "CPU")
    (layer,) = found.drawn("node unsupported")
    assert layer.texts == ["0/conv", "nobody::Foo"]
    assert layer.fill == colours.UNSUPPORTED.fill
    reason = layer.tooltip.splitlines()[-1]
    assert reason.startswith("CPU: ")
    assert any(text.startswith("0/conv (Foo): CPU: ") for text in found.texts)
    assert "1 subgraph, 10 layers, 1 unsupported" in found.texts


def test_many_layers_are_one_box_unless_all_are_wanted(server: Server, tmp_path: Path) -> None:
    model = residual_network(22)
    (box,) = draw(server, tmp_path, model).drawn("node subgraph")
    assert box.texts[:2] == ["subgraph 1 · CPU", "70 layers"]
    assert "23 Conv" in box.texts
    assert len(draw(server, tmp_path, model, "--full").drawn("node layer")) == 70


def test_a_split_network_is_framed_in_execution_order(server: Server, tmp_path: Path) -> None:
    require(server, "HETERO", "TEMPLATE", "CPU")
    model = residual_network(3)
    first, second = names(model)[:4], names(model)[4:]
    asked = [*affinities(first, "CPU"), *affinities(second, "TEMPLATE")]
    found = draw(server, tmp_path, model, "--device", "HETERO:TEMPLATE,CPU", *asked)
    assert [frame.texts for frame in found.drawn("cluster subgraph")] == [
        ["subgraph 1 · CPU · 4 layers"],
        ["subgraph 2 · TEMPLATE · 9 layers"],
    ]
    fills = {layer.texts[0]: layer.fill for layer in found.drawn("node layer")}
    assert [fills[name] for name in first] == [colours.of_device(0).fill] * 4
    assert [fills[name] for name in second] == [colours.of_device(1).fill] * 9
    cuts = found.drawn("edge cut")
    assert cuts
    labels = [cut.texts for cut in cuts if cut.texts]
    assert labels == [["0/add:0", "float32[1,8,16,16] · 8 KiB"]]
    assert not found.drawn("node unsupported")


def test_what_no_device_of_a_list_runs_is_red(server: Server, tmp_path: Path) -> None:
    require(server, "HETERO", "TEMPLATE", "CPU")
    model = residual_network(3, odd="1/conv")
    found = draw(server, tmp_path, model, "--device", "HETERO:TEMPLATE,CPU")
    (layer,) = found.drawn("node unsupported")
    assert layer.texts == ["1/conv", "nobody::Foo"]
    assert {"TEMPLATE:", "CPU:"} <= set(layer.tooltip.split())
    assert len(found.drawn("cluster subgraph")) == 2


def test_the_commands_of_the_manual_draw(server: Server, tmp_path: Path) -> None:
    require(server, "HETERO", "TEMPLATE", "CPU")
    onnx.save(residual_network(3), tmp_path / "model.onnx")
    drawing = [words for words in commands(PAGE) if {"--svg", "--png", "--dot"} & {*words}]
    assert len(drawing) == 3
    for words in drawing:
        headrace(server, tmp_path, *words)
    Picture(tmp_path / "query.svg")
    parse((tmp_path / "query.dot").read_text("utf-8"))
    assert (tmp_path / "query.png").read_bytes().startswith(b"\x89PNG")
