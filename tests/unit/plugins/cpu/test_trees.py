"""Decision trees answer with the class that has the highest score, or are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.plugins import cpu
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.testing.case import parse
from headrace.testing.infer_request import InferRequest
from headrace.testing.services import services

_TREE = """g (float[n,1] x) => (int64[n] y, float[n,c] z) {{
    y, z = ai.onnx.ml.TreeEnsembleClassifier<
        nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
        nodes_values = [0.5, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0],
        class_treeids = {trees}, class_nodeids = {leaves}, class_ids = {classes},
        class_weights = {weights}, classlabels_int64s = {labels} {more}
    >(x)
}}"""
_LEFT_AND_RIGHT = np.array([[0], [1]], np.float32)


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with services() as offered:
        yield cpu.create_plugin("CPU", offered, {})


def tree(votes: list[tuple[int, int, float]], classes: int, more: str = "") -> Network:
    """A tree of two leaves, 1 and 2. A vote is a leaf, a class and a weight."""
    text = _TREE.format(
        trees=[0] * len(votes),
        leaves=[leaf for leaf, _, _ in votes],
        classes=[number for _, number, _ in votes],
        weights=[weight for _, _, weight in votes],
        labels=[*range(classes)],
        more=more,
    )
    model = parse(text)
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    return Network.from_bytes(model.SerializeToString())


def labels(plugin: Plugin, given: Network) -> list[int]:
    compiled = plugin.load_network(Load(given))
    try:
        found: Any = InferRequest(compiled).infer({"x": _LEFT_AND_RIGHT})["y"]
    finally:
        compiled.close()
    return [*found.tolist()]


@pytest.mark.parametrize(
    ("votes", "classes"),
    [
        ([(1, 0, 0.9), (1, 1, 0.1), (2, 0, 0.2), (2, 1, 0.8)], 2),
        ([(1, 0, 1.0), (2, 1, 1.0)], 2),
        ([(1, 0, -0.9), (2, 1, -0.2)], 3),
    ],
)
def test_trees_for_which_the_backend_takes_another_class_are_refused(
    plugin: Plugin, votes: list[tuple[int, int, float]], classes: int
) -> None:
    given = tree(votes, classes)
    assert plugin.query_network(given, {}).unsupported
    with pytest.raises(UnsupportedLayers, match="the backend does not choose"):
        plugin.load_network(Load(given))


@pytest.mark.parametrize(
    ("votes", "more", "expected"),
    [
        ([(1, 0, 0.9), (2, 1, 0.2)], "", [0, 1]),
        (
            [(leaf, number, -0.5 * leaf * number) for leaf in (1, 2) for number in (0, 1, 2)],
            "",
            [0, 0],
        ),
        ([(1, 0, -0.9), (2, 1, -0.2)], ", base_values = [0.0, 0.0, -0.1]", [1, 0]),
    ],
)
def test_trees_of_many_classes_give_the_one_with_the_highest_score(
    plugin: Plugin, votes: list[tuple[int, int, float]], more: str, expected: list[int]
) -> None:
    assert labels(plugin, tree(votes, 3, more)) == expected


def test_trees_that_vote_for_one_of_two_classes_are_served(plugin: Plugin) -> None:
    assert labels(plugin, tree([(1, 0, 0.9), (2, 0, 0.2)], 2)) == [1, 0]
