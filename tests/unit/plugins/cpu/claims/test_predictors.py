"""Classifiers answer with the class of the highest score, and regressors with what ONNX says, or
they are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import UnsupportedLayers
from headrace.runtime.network.network import Network
from headrace.runtime.network.reference.evaluator import CorrectedEvaluator
from headrace.testing.case import network_of, parse
from headrace.testing.infer_request import InferRequest, infer_once

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


def tree_text(votes: list[tuple[int, int, float]], classes: int, more: str = "") -> str:
    """A tree of two leaves, 1 and 2. A vote is a leaf, a class and a weight."""
    return _TREE.format(
        trees=[0] * len(votes),
        leaves=[leaf for leaf, _, _ in votes],
        classes=[number for _, number, _ in votes],
        weights=[weight for _, _, weight in votes],
        labels=[*range(classes)],
        more=more,
    )


def tree(votes: list[tuple[int, int, float]], classes: int, more: str = "") -> Network:
    return predictor(tree_text(votes, classes, more))


def run(plugin: Plugin, given: Network, x: Any = _LEFT_AND_RIGHT) -> list[Any]:
    return [*infer_once(plugin, given, x).values()]


def labels(plugin: Plugin, given: Network) -> list[Any]:
    return [*run(plugin, given)[0].tolist()]


_BOTH = [(1, 0, 0.9), (1, 1, 0.1), (2, 0, 0.2), (2, 1, 0.8)]
_SEVERAL_VOTES = [
    (_BOTH, 2),
    ([(1, 0, 1.0), (2, 1, 1.0)], 2),
    ([(1, 0, -0.9), (2, 1, -0.2)], 2),
    ([(1, 0, 0.3), (2, 0, 0.4), (2, 1, 0.5)], 2),
    ([(1, 0, -0.9), (1, 1, -0.2), (2, 0, 0.7), (2, 1, 0.6)], 2),
    ([(1, 0, -0.9), (2, 1, -0.2)], 3),
    ([(1, 1, 0.3), (2, 1, 0.9)], 2),
    ([(1, 1, -0.3), (2, 1, 0.9)], 2),
]


_POSTS_AND_BASES = [
    ("NONE", "none"),
    ("NONE", "one"),
    ("NONE", "each"),
    ("LOGISTIC", "none"),
    ("SOFTMAX", "none"),
    ("SOFTMAX_ZERO", "none"),
    *(
        pytest.param(post, base, marks=pytest.mark.long)
        for post in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
        for base in ("one", "each")
    ),
]


@pytest.mark.parametrize(("votes", "classes"), _SEVERAL_VOTES)
@pytest.mark.parametrize(("post", "base"), _POSTS_AND_BASES)
def test_label_and_scores_are_onnx_s_where_the_backend_takes_others(
    plugin: Plugin, votes: list[tuple[int, int, float]], classes: int, post: str, base: str
) -> None:
    if classes == 3 and base == "one":
        return  # the backend wants one for each class
    values = {"none": [], "one": [0.5], "each": [0.1, 0.4, -0.3][:classes]}[base]
    more = f", base_values = {values}" if values else ""
    model = parse(tree_text(votes, classes, f', post_transform = "{post}"{more}'))
    given = network_of(model)
    assert not plugin.query_network(given, {}).unsupported
    label, scores = run(plugin, given)
    wanted: Any = CorrectedEvaluator(model).run(None, {"x": _LEFT_AND_RIGHT})
    np.testing.assert_allclose(scores, wanted[1], rtol=1e-5, atol=1e-6)
    assert label.tolist() == wanted[0].tolist()


def test_trees_with_weights_of_64_bits_get_the_votes_that_they_lack(plugin: Plugin) -> None:
    model = parse(tree_text([(1, 0, 1.0), (2, 1, 1.0)], 2))
    (node,) = model.graph.node
    for each in node.attribute:
        if each.name in ("class_weights", "nodes_values"):
            each.t.CopyFrom(onnx.numpy_helper.from_array(np.array(each.floats, np.float64)))
            each.name, each.type = f"{each.name}_as_tensor", onnx.AttributeProto.TENSOR
            each.ClearField("floats")
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    given = network_of(model)
    label, scores = run(plugin, given, _LEFT_AND_RIGHT.astype(np.float64))
    assert label.tolist() == [0, 1]
    assert scores.tolist() == [[1, 0], [0, 1]]


def test_a_label_that_is_a_text_is_that_of_the_highest_score(plugin: Plugin) -> None:
    text = tree_text(_BOTH, 2).replace("(int64[n] y", "(string[n] y")
    text = text.replace("classlabels_int64s = [0, 1]", 'classlabels_strings = ["no", "yes"]')
    assert labels(plugin, predictor(text)) == ["no", "yes"]


def test_a_forest_whose_label_nobody_reads_needs_no_more_layers(plugin: Plugin) -> None:
    given = predictor(tree_text(_BOTH, 2).replace("(int64[n] y, float", "(float"))
    assert not plugin.query_network(given, {}).unsupported
    compiled = plugin.load_network(Load(given))
    try:
        (scores,) = InferRequest(compiled).infer({"x": _LEFT_AND_RIGHT}).values()
        np.testing.assert_allclose(scores, [[0.9, 0.1], [0.2, 0.8]])  # type: ignore[arg-type]
        assert [layer.op_type for layer in compiled.layers()] == ["TreeEnsembleClassifier"]
    finally:
        compiled.close()


def test_a_label_of_scores_that_may_be_no_numbers_is_refused(plugin: Plugin) -> None:
    given = tree(_BOTH, 2, ', post_transform = "PROBIT"')
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


@pytest.mark.parametrize("weight", [0.3, -0.3])
@pytest.mark.parametrize("base", ["", ", base_values = [0.1]"])
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
def test_the_label_of_votes_for_the_first_class_alone_is_that_of_the_highest_score(
    plugin: Plugin, weight: float, base: str, post: str
) -> None:
    more = f', post_transform = "{post}"{base}'
    label, scores = run(plugin, tree([(1, 0, weight), (2, 0, 0.9)], 2, more))
    assert label.tolist() == scores.argmax(axis=1).tolist()


def test_two_base_values_of_votes_for_the_first_class_alone_are_refused(plugin: Plugin) -> None:
    given = tree([(1, 0, 0.3), (2, 0, 0.9)], 2, ", base_values = [0.1, 0.2]")
    assert plugin.query_network(given, {}).unsupported
    with pytest.raises(UnsupportedLayers, match="base values"):
        plugin.load_network(Load(given))


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
    return network_of(text)


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
