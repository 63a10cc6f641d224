"""Operators of ai.onnx.ml: each behaviour is one that onnx's own evaluator gets wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

from headrace.runtime.network.reference.evaluator import CorrectedEvaluator

_TREE = """y, z = ai.onnx.ml.TreeEnsembleClassifier<
    nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
    nodes_values = [0.5, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],
    nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], class_treeids = [0, 0],
    class_nodeids = [1, 2], class_ids = {}, class_weights = [0.75, 0.25],
    classlabels_int64s = {}, post_transform = "{}">(x)"""
_LEFT_AND_RIGHT = [[0.0], [1.0]]


def run(node: str, x: Any, kind: str = "float") -> list[Any]:
    outputs = node.partition("=")[0].strip().split(", ")
    kinds = {"c": "int64", "s": "string"}
    ports = ", ".join(f"{kinds.get(each, 'float')} {each}" for each in outputs)
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>'
        f"g ({kind} x) => ({ports}) {{ {node} }}"
    )
    value = np.array(x, {"float": np.float32, "int32": np.int32, "int64": np.int64}[kind])
    return [np.asarray(each).tolist() for each in CorrectedEvaluator(model).run(None, {"x": value})]


@pytest.mark.parametrize(
    ("voted", "labels", "scores"),
    [
        ([1, 1], [0, 1], [[0.0, 0.75], [0.0, 0.25]]),
        ([0, 0], [0, 1, 2], [[0.75, 0.0, 0.0], [0.25, 0.0, 0.0]]),
        ([0, 0], [0, 1], [[0.25, 0.75], [0.75, 0.25]]),  # for the second class
    ],
)
def test_votes_for_one_class_are_its_score(
    voted: list[int], labels: list[int], scores: list[list[float]]
) -> None:
    found, given = run(_TREE.format(voted, labels, "NONE"), _LEFT_AND_RIGHT)
    assert given == scores
    assert found == [int(np.argmax(each)) for each in scores]


def test_the_probability_of_one_of_two_classes_is_the_second_ones() -> None:
    found, given = run(_TREE.format([0, 0], [4, 5], "LOGISTIC"), _LEFT_AND_RIGHT)
    second = 1 / (1 + np.exp([-0.75, -0.25]))
    np.testing.assert_allclose(given, np.stack([1 - second, second], axis=1), rtol=1e-6)
    assert found == [5, 5]


def test_the_other_score_is_the_negative_where_a_weight_is_negative() -> None:
    tree = _TREE.replace("0.75, 0.25", "-0.75, 0.25")
    found, given = run(tree.format([0, 0], [4, 5], "NONE"), _LEFT_AND_RIGHT)
    assert given == [[0.75, -0.75], [-0.25, 0.25]]
    assert found == [4, 5]


def test_another_transform_of_one_of_two_classes_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        run(_TREE.format([0, 0], [0, 1], "SOFTMAX"), _LEFT_AND_RIGHT)


def test_of_two_classes_with_scores_the_higher_one_is_chosen() -> None:
    machine = """y, z = ai.onnx.ml.SVMClassifier<coefficients = [1.0, 0.5], rho = [0.0],
        kernel_type = "LINEAR", kernel_params = [0.0, 0.0, 0.0], classlabels_ints = [4, 5]>(x)"""
    labels, scores = run(machine, [[1.0], [-1.0]])
    assert scores == [[1.0, 0.5], [-1.0, -0.5]]
    assert labels == [4, 5]


@pytest.mark.parametrize(
    "node",
    [
        "y = ai.onnx.ml.LinearRegressor<coefficients = [1.0, 2.0, 3.0, 4.0], targets = 2>(x)",
        "c, y = ai.onnx.ml.LinearClassifier<coefficients = [1.0, 2.0, 3.0, 4.0], "
        "classlabels_ints = [0, 1]>(x)",
    ],
)
def test_without_intercepts_a_sum_is_what_it_is(node: str) -> None:
    assert run(node, [[1.0, 1.0]])[-1] == [[3.0, 7.0]]


@pytest.mark.parametrize(
    ("norm", "row", "expected"),
    [
        ("MAX", [-4.0, 2.0], [-2.0, 1.0]),
        ("MAX", [-4.0, 0.0], [-4.0, 0.0]),
        ("L1", [-3.0, 1.0], [-0.75, 0.25]),
        ("L2", [-3.0, 4.0], [-0.6, 0.8]),
    ],
)
def test_a_row_is_normalised_with_or_without_a_batch(
    norm: str, row: list[float], expected: list[float]
) -> None:
    node = f'y = ai.onnx.ml.Normalizer<norm = "{norm}">(x)'
    assert run(node, row) == [pytest.approx(expected)]
    assert run(node, [row]) == [[pytest.approx(expected)]]


def test_numbers_become_integers_before_their_category_is_looked_for() -> None:
    node = "y = ai.onnx.ml.OneHotEncoder<cats_int64s = [1, 2, 2]>(x)"
    assert run(node, [[[1.75]], [[3.0]]]) == [[[[[1.0, 0.0, 0.0]]], [[[0.0, 0.0, 0.0]]]]]


def test_an_element_without_a_category_is_refused_where_zeros_are() -> None:
    with pytest.raises(ValueError, match="none of the categories"):
        run("y = ai.onnx.ml.OneHotEncoder<cats_int64s = [1], zeros = 0>(x)", [2], "int64")


def test_integers_are_scaled_to_fractions() -> None:
    node = "y = ai.onnx.ml.Scaler<offset = [0.5], scale = [0.5]>(x)"
    assert run(node, [[1, 2]], "int32") == [[[0.25, 0.75]]]


@pytest.mark.parametrize(
    "node",
    [
        "y = ai.onnx.ml.LinearRegressor<coefficients = [1.0, 2.0, 3.0, 4.0], targets = 2>(x)",
        "c, y = ai.onnx.ml.LinearClassifier<coefficients = [1.0, 2.0, 3.0, 4.0], "
        "classlabels_ints = [0, 1]>(x)",
        "c, y = ai.onnx.ml.SVMClassifier<coefficients = [1.0, 2.0, 3.0, 4.0], rho = [0.0], "
        "kernel_params = [0.0, 0.0, 0.0], classlabels_ints = [0, 1]>(x)",
    ],
)
def test_features_without_a_batch_are_one_row(node: str) -> None:
    assert run(node, [1.0, 1.0])[-1] == [[3.0, 7.0]]


def test_features_of_many_axes_are_scaled_by_one_number_alone() -> None:
    node = "y = ai.onnx.ml.Scaler<offset = {0}, scale = {0}>(x)"
    assert run(node.format([0.5]), [[[1.0]]]) == [[[[0.25]]]]
    with pytest.raises(NotImplementedError):
        run(node.format([0.5, 0.5]), [[[1.0, 2.0]]])


_MACHINE = """y, z = ai.onnx.ml.SVMClassifier<coefficients = {}, rho = {}, kernel_type = "LINEAR",
    kernel_params = [0.0, 0.0, 3.0], support_vectors = {}, vectors_per_class = {},
    classlabels_ints = {} {}>(x)"""


def test_scores_of_a_vector_machine_keep_their_digits() -> None:
    machine = _MACHINE.format([20000.0, -20000.0], [0.25], [1000.0, 1000.25], [1, 1], [0, 1], "")
    _, scores = run(machine, [[1.2345]])
    wanted = 0.25 - 20000 * 0.25 * float(np.float32(1.2345))
    np.testing.assert_allclose(np.abs(scores), [[-wanted, -wanted]], rtol=1e-6)


@pytest.mark.parametrize("names", [["no", "yes"], ["no", "yes", "perhaps"]])
def test_classes_of_a_vector_machine_may_have_names(names: list[str]) -> None:
    count = len(names)
    numbers = {2: [1.0, -1.0], 3: [1.0, 0.5, 0.5, -1.0, -0.5, 0.25]}[count]
    offsets = [0.1, 0.2, 0.3][: count * (count - 1) // 2]
    vectors = [1.0, -2.0, 3.0][:count]
    machine = _MACHINE.format(numbers, offsets, vectors, [1] * count, [*range(count)], "")
    x = [[1.0], [-1.0], [4.0]]
    places, scores = run(machine, x)
    named = machine.replace(f"classlabels_ints = {[*range(count)]}", "classlabels_strings = {}")
    quoted = ", ".join(f'"{each}"' for each in names)
    found, same = run(named.replace("y, z", "s, z").replace("{}", f"[{quoted}]"), x)
    assert found == [names[place] for place in places]
    assert same == scores


def test_probabilities_of_many_classes_are_refused() -> None:
    probabilities = ", prob_a = [-1.0, -1.0, -1.0], prob_b = [0.0, 0.0, 0.0]"
    machine = _MACHINE.format(
        [1.0, 0.5, 0.5, -1.0, -0.5, 0.25],
        [0.1, 0.2, 0.3],
        [1.0, 2.0, 3.0],
        [1, 1, 1],
        [0, 1, 2],
        probabilities,
    )
    with pytest.raises(NotImplementedError, match="more than two classes"):
        run(machine, [[1.0]])
