"""Classifiers answer with the class of the highest score, and regressors with what ONNX says, or
they are refused."""

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
    with pytest.raises(UnsupportedLayers, match="does not choose"):
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


_MACHINE = """g (float[n,3] x) => (int64[n] y, float[n,c] z) {{
    y, z = ai.onnx.ml.SVMClassifier<coefficients = [1.0, -1.0, 1.0, 0.5, 0.5, 0.5],
        kernel_params = [0.1, 0.0, 3.0], rho = [0.1], {more}>(x)
}}"""
_VECTORS = """kernel_type = "RBF", support_vectors = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    vectors_per_class = """
_LINEAR = """g (float[n,3] x) => (int64[n] y, float[n,c] z) {{
    y, z = ai.onnx.ml.LinearClassifier<coefficients = [0.1, 0.2, 0.3], intercepts = [0.1],
        classlabels_ints = [0, 1], post_transform = "{post}">(x)
}}"""


def predictor(text: str) -> Network:
    model = parse(text)
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    return Network.from_bytes(model.SerializeToString())


_OPEN = [
    *(
        text
        for post in ("SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
        for text in (
            _LINEAR.format(post=post),
            _MACHINE.format(
                more=f'{_VECTORS} [1, 1], classlabels_ints = [0, 1], post_transform = "{post}"'
            ),
        )
    ),
    _MACHINE.format(more=f"{_VECTORS} [2], classlabels_ints = [0]"),
    _MACHINE.format(more='kernel_type = "LINEAR", classlabels_ints = [0, 1]'),
]


@pytest.mark.parametrize("text", _OPEN)
def test_a_score_that_the_backend_makes_of_another_or_of_foreign_memory_is_refused(
    plugin: Plugin, text: str
) -> None:
    given = predictor(text)
    assert plugin.query_network(given, {}).unsupported
    with pytest.raises(UnsupportedLayers, match="the backend"):
        plugin.load_network(Load(given))


def test_a_transformed_tree_that_votes_for_one_of_two_classes_is_refused(plugin: Plugin) -> None:
    given = tree([(1, 0, 0.9), (2, 0, 0.2)], 2, ', post_transform = "PROBIT"')
    with pytest.raises(UnsupportedLayers, match="does not transform"):
        plugin.load_network(Load(given))


@pytest.mark.parametrize(
    "text",
    [
        _LINEAR.format(post="LOGISTIC"),
        _MACHINE.format(more=f"{_VECTORS} [1, 1], classlabels_ints = [0, 1]"),
        _MACHINE.format(
            more=f"{_VECTORS} [1, 1], classlabels_ints = [0, 1], prob_a = [0.5], prob_b = [0.1], "
            'post_transform = "SOFTMAX"'
        ),
    ],
)
def test_other_classifiers_of_two_classes_are_served(plugin: Plugin, text: str) -> None:
    assert not plugin.query_network(predictor(text), {}).unsupported


_REGRESSOR = "g (float[n,3] x) => (float[n,t] y) {{ y = ai.onnx.ml.{}(x) }}"
_LINE = "LinearRegressor<coefficients = [0.1, 0.2, 0.3], intercepts = [0.1] {}>"
_LINES = (
    "LinearRegressor<coefficients = [0.1, 0.2, 0.3, 0.1, 0.2, 0.3], targets = 2,"
    "intercepts = [0.1] {}>"
)
_SUPPORT = """SVMRegressor<coefficients = [1.0, -1.0], kernel_params = [0.1, 0.0, 3.0],
    n_supports = 2, kernel_type = "POLY", rho = [0.1],
    support_vectors = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6] {}>"""
_LEAVES = """TreeEnsembleRegressor<nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2],
    nodes_featureids = [0, 0, 0], nodes_values = [0.5, 0.0, 0.0], nodes_falsenodeids = [2, 0, 0],
    nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids = [1, 0, 0],
    target_treeids = [0, 0], target_nodeids = [1, 2], target_ids = [0, 0],
    target_weights = [0.3, 0.7], n_targets = 1 {}>"""


@pytest.mark.parametrize(
    ("text", "match"),
    [
        *(
            (each.format(f', post_transform = "{post}"'), "leaves out post_transform")
            for each in (_LINE, _SUPPORT, _LEAVES)
            for post in ("SOFTMAX", "SOFTMAX_ZERO", "LOGISTIC")
        ),
        (_SUPPORT.format(', post_transform = "PROBIT"'), "leaves out post_transform"),
        (_LINES.format(""), "1 intercepts for 2 targets"),
    ],
)
def test_a_regressor_of_which_the_backend_leaves_out_a_part_is_refused(
    plugin: Plugin, text: str, match: str
) -> None:
    given = predictor(_REGRESSOR.format(text))
    assert plugin.query_network(given, {}).unsupported
    with pytest.raises(UnsupportedLayers, match=match):
        plugin.load_network(Load(given))


@pytest.mark.parametrize(
    "text",
    [
        *(each.format("") for each in (_LINE, _SUPPORT, _LEAVES)),
        *(each.format(', post_transform = "PROBIT"') for each in (_LINE, _LEAVES)),
    ],
)
def test_other_regressors_are_served(plugin: Plugin, text: str) -> None:
    assert not plugin.query_network(predictor(_REGRESSOR.format(text)), {}).unsupported


@pytest.mark.parametrize(("kind", "norm", "good"), [
    ("int32", "L2", False), ("int64", "L2", False), ("float", "L2", True), ("int64", "L1", True),
])  # fmt: skip
def test_the_squares_of_integers_are_refused(
    plugin: Plugin, kind: str, norm: str, good: bool
) -> None:
    text = (
        f'g ({kind}[n,c] x) => (float[n,c] y) {{ y = ai.onnx.ml.Normalizer<norm = "{norm}">(x) }}'
    )
    assert bool(plugin.query_network(predictor(text), {}).unsupported) is not good
