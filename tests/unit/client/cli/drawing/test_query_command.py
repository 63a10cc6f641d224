"""``headrace query`` with --svg, --png and --dot: files, what is printed, and what is missing."""

from __future__ import annotations

import json
import shutil
import stat
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headrace.client.cli.app import make_app
from headrace.client.cli.drawing import render
from tests.support.client_fake import Fake
from tests.support.dot_text import parse, shown

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


@pytest.fixture
def run(fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Queries `model.onnx` with further arguments, in a folder of its own."""
    monkeypatch.setenv("HEADRACE_SERVER", fake.target)
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(b"model")

    def run(*arguments: str) -> Result:
        texts = ["query", "model.onnx", *arguments]
        return CliRunner().invoke(make_app(texts), texts)

    return run


def test_dot_is_written_without_graphviz(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = run("--device", "CPU", "--dot", "out.dot")
    assert result.exit_code == 0, result.output
    dot = parse(Path("out.dot").read_text(encoding="utf-8"))
    assert shown(dot.clusters["cluster_1"].nodes["layer0"]["label"]) == ["Relu_0", "Relu"]
    assert dot.nodes["layer1"]["class"] == "unsupported"
    assert "model.onnx on CPU" in dot.attributes["label"]
    assert result.stderr == "note: wrote out.dot\n"


def test_instead_of_a_table_a_summary_is_printed(run: Any) -> None:
    assert run("--dot", "out.dot").stdout.splitlines() == [
        "1 supported layer, 1 unsupported layer",
        "subgraph 1 on CPU: 1 layer",
        "note: moved from X to CPU (why): Relu_0",
        "unsupported F_1 (Foo): no kernel",
    ]


def test_json_is_the_same_with_a_picture(run: Any) -> None:
    plain, drawn = run("--json"), run("--json", "--dot", "out.dot")
    assert json.loads(drawn.stdout) == json.loads(plain.stdout)


def test_the_graph_is_asked_for_only_to_be_drawn(run: Any, fake: Fake) -> None:
    run()
    run("--dot", "out.dot")
    assert [request.graph for request in fake.requests("QueryNetwork")] == [False, True]


@needs_dot
def test_svg_and_png_are_pictures(run: Any) -> None:
    result = run("--svg", "out.svg", "--png", "out.png")
    assert result.exit_code == 0, result.output
    svg = ElementTree.parse("out.svg").getroot()
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Relu_0", "F_1", "own::Foo", "unsupported"} <= set(texts)
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")


def test_without_the_program_the_remedy_is_named(
    run: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    result = run("--svg", "out.svg")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: drawing needs Graphviz' program dot, which is not on the PATH; install Graphviz, "
        "as with: apt install graphviz; --dot writes the drawing as text, without Graphviz\n"
    )
    assert not fake.calls, "nothing was asked in vain"


def test_without_the_package_the_remedy_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "find_spec", lambda name: None)
    result = run("--png", "out.png")
    assert result.exit_code == 1
    assert "install headrace with its extra 'draw'" in result.stderr
    assert "--dot" in result.stderr


def test_a_program_that_fails_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Path("dot")
    program.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(Path.cwd()))
    result = run("--svg", "out.svg")
    assert result.exit_code == 1
    assert "dot ended with status 3, for the reason above" in result.stderr
    assert not Path("out.svg").exists()


def test_a_server_that_gives_no_graph_is_older(run: Any, fake: Fake) -> None:
    fake.graph = None
    result = run("--dot", "out.dot")
    assert result.exit_code == 1
    assert "the server is older than this client" in result.stderr


def test_a_file_that_cannot_be_written_is_an_error(run: Any) -> None:
    result = run("--dot", "missing/out.dot")
    assert result.exit_code == 1
    assert result.stderr == "error: cannot write missing/out.dot: No such file or directory\n"
