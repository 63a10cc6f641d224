"""Writes models and a ``config.json`` as OpenVINO Model Server has them, with the kinds of
pipelines that it tests itself. As a program it writes into the folder that it is given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from headrace.testing.case import parse

MODELS: Final = {
    "add_one": """add_one (float[1,10] b) => (float[1,10] a) {
        one = Constant<value_float = 1.0>()
        a = Add(b, one)
    }""",
    "multiples": """multiples (float[1,10] b) => (float[3,1,10] a) {
        zero = Constant<value_ints = [0]>()
        row = Unsqueeze(b, zero)
        factors = Constant<value = float[3,1,1] {1, 2, 3}>()
        a = Mul(row, factors)
    }""",
    "sum_of_three": """sum_of_three (float[3,1,10] b) => (float[1,10] a) {
        zero = Constant<value_ints = [0]>()
        a = ReduceSum<keepdims = 0>(b, zero)
    }""",
    "sum_of_two": """sum_of_two (float[1,10] b, float[1,10] c) => (float[1,10] a) {
        a = Add(b, c)
    }""",
}


def _from(node: str, item: str) -> dict[str, str]:
    return {"node_name": node, "data_item": item}


def _node(name: str, model: str, takes: str, **more: Any) -> dict[str, Any]:
    source = _from(takes, "numbers" if takes == "request" else "out")
    return {
        "name": name,
        "model_name": model,
        "type": "DL model",
        "inputs": [{"b": source}],
        "outputs": [{"data_item": "a", "alias": "out"}],
        **more,
    }


def _pipeline(name: str, last: str, *nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "inputs": ["numbers"],
        "nodes": list(nodes),
        "outputs": [{"answer": _from(last, "out")}],
        **more,
    }


_TWO: Final = {
    **_node("both", "sum_of_two", "left"),
    "inputs": [{"b": _from("left", "out")}, {"c": _from("right", "out")}],
}
PIPELINES: Final = [
    _pipeline(
        "chain", "second", _node("first", "add_one", "request"), _node("second", "add_one", "first")
    ),
    _pipeline(
        "fork", "both", _node("left", "add_one", "request"), _node("right", "add_one", "left"), _TWO
    ),
    _pipeline(
        "demultiplexer",
        "row",
        _node("split", "multiples", "request", demultiply_count=3),
        _node("row", "add_one", "split"),
    ),
    _pipeline(
        "gather",
        "sum",
        _node("split", "multiples", "request", demultiply_count=3),
        _node("row", "add_one", "split"),
        _node("sum", "sum_of_three", "row", gather_from_node="split"),
    ),
    _pipeline(
        "two_demultiplexers",
        "row",
        _node("outer", "multiples", "request", demultiply_count=3),
        _node("inner", "multiples", "outer", demultiply_count=-1),
        _node("row", "add_one", "inner"),
    ),
    _pipeline(
        "two_demultiplexers_and_gathers",
        "all",
        _node("outer", "multiples", "request", demultiply_count=3),
        _node("inner", "multiples", "outer", demultiply_count=3),
        _node("row", "add_one", "inner"),
        _node("some", "sum_of_three", "row", gather_from_node="inner"),
        _node("all", "sum_of_three", "some", gather_from_node="outer"),
    ),
    _pipeline("request_rows", "row", _node("row", "add_one", "request"), demultiply_count=0),
    _pipeline("two_rows", "row", _node("row", "add_one", "request"), demultiply_count=2),
]


def write(root: Path) -> Path:
    """Writes the models and the file, and returns the file's path."""
    models = []
    for name, text in MODELS.items():
        folder = root / name / "1"
        folder.mkdir(parents=True)
        (folder / f"{name}.onnx").write_bytes(parse(text).SerializeToString())
        config = {
            "name": name,
            "base_path": str(root / name),
            "nireq": 2,
            "model_version_policy": {"all": {}},
        }
        models.append({"config": config})
    file = root / "config.json"
    facts = {"model_config_list": models, "pipeline_config_list": PIPELINES}
    file.write_text(json.dumps(facts, indent=2))
    return file


if __name__ == "__main__":
    write(Path(sys.argv[1]))
