"""Operators of ONNX that its cases lack, and those of ONNX Runtime that it took over from them.

Each with its inputs and outputs, and with the values of inputs that are not arbitrary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ML = "ai.onnx.ml"
_TREE = """nodes_treeids=[0,0,0], nodes_nodeids=[0,1,2], nodes_featureids=[1,0,0],
    nodes_values=[0.5,0.0,0.0], nodes_modes=["BRANCH_LEQ","LEAF","LEAF"], nodes_truenodeids=[1,0,0],
    nodes_falsenodeids=[2,0,0]"""

OPERATORS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("(float[2,3,4,5] x) => (float y) GlobalLpPool", {}),
    ("(float[1,1,5,5] x, float[1,5] r) => (float y) MaxRoiPool<pooled_shape=[2,2]>", {}),
    ("(float[2,3] x) => (float y) Affine<alpha=2.0, beta=1.0>", {}),
    ("(float[1,1,5,5] x) => (float y) Crop<border=[1,1,1,1]>", {}),
    ("(float[4,4] x, int64[1] s, int64[1] e, int64[1] a) => (float y) DynamicSlice", {"a": 0}),
    ("(float[1,3,2,2] x) => (float y) ImageScaler<scale=2.0, bias=[1.0,2.0,3.0]>", {}),
    ("(float[2,3] x) => (float y) ParametricSoftplus<alpha=1.0, beta=1.0>", {}),
    ("(float[2,3] x) => (float y) Scale<scale=2.0>", {}),
    ("(float[2,3] x) => (float y) ScaledTanh<alpha=1.0, beta=1.0>", {}),
    ("(float[2,3] x, float[3] s) => (float y) SimplifiedLayerNormalization", {}),
    (
        "(string[3] x) => (int64 y) "
        f'{_ML}.CategoryMapper<cats_int64s=[1,2], cats_strings=["a","b"]>',
        {},
    ),
    (
        f"(float[2,2] x, float[2,3] z) => (float y) {_ML}.FeatureVectorizer<inputdimensions=[2,3]>",
        {},
    ),
    (f"(float[2,2] x) => (float y) {_ML}.Imputer<imputed_value_floats=[1.0,2.0]>", {}),
    (
        "(float[2,3] x) => (int64 y, float z) "
        f"{_ML}.LinearClassifier<coefficients=[0.1,0.2,0.3,0.4,0.5,0.6], intercepts=[0.1,0.2], "
        'classlabels_ints=[0,1], post_transform="SOFTMAX">',
        {},
    ),
    (
        "(float[2,3] x) => (float y) "
        f"{_ML}.LinearRegressor<coefficients=[0.1,0.2,0.3,0.4,0.5,0.6], intercepts=[0.1,0.2], "
        "targets=2>",
        {},
    ),
    (f'(float[2,3] x) => (float y) {_ML}.Normalizer<norm="L2">', {}),
    (f"(int64[2,3] x) => (float y) {_ML}.OneHotEncoder<cats_int64s=[0,1,2]>", {}),
    (f"(float[2,3] x) => (float y) {_ML}.Scaler<offset=[1.0,2.0,3.0], scale=[1.0,2.0,3.0]>", {}),
    (
        "(float[2,3] x) => (int64 y, float z) "
        f"{_ML}.SVMClassifier<classlabels_ints=[0,1], coefficients=[1.0,-1.0], "
        'kernel_params=[0.1,0.0,3.0], kernel_type="RBF", rho=[0.1], '
        "support_vectors=[0.1,0.2,0.3,0.4,0.5,0.6], vectors_per_class=[1,1]>",
        {},
    ),
    (
        "(float[2,3] x) => (int64 y, float z) "
        f"{_ML}.SVMClassifier<classlabels_ints=[0,1], coefficients=[1.0,-1.0,1.0,0.5,0.5,0.5], "
        'kernel_params=[0.1,0.0,3.0], kernel_type="LINEAR", rho=[0.1]>',
        {},
    ),
    (
        "(float[2,3] x) => (float y) "
        f"{_ML}.SVMRegressor<coefficients=[1.0,-1.0], kernel_params=[0.1,0.0,3.0], n_supports=2, "
        'kernel_type="POLY", rho=[0.1], support_vectors=[0.1,0.2,0.3,0.4,0.5,0.6]>',
        {},
    ),
    (
        "(float[2,3] x) => (float y) "
        f"{_ML}.SVMRegressor<coefficients=[1.0,-1.0,0.5], kernel_params=[0.1,0.0,3.0], "
        'n_supports=0, kernel_type="LINEAR", rho=[0.1]>',
        {},
    ),
    (
        "(float[2,3] x) => (int64 y, float z) "
        f"{_ML}.TreeEnsembleClassifier<{_TREE}, class_treeids=[0,0], class_nodeids=[1,2], "
        "class_ids=[0,1], class_weights=[1.0,1.0], classlabels_int64s=[0,1]>",
        {},
    ),
    (
        "(float[2,3] x) => (float y) "
        f"{_ML}.TreeEnsembleRegressor<{_TREE}, target_treeids=[0,0], target_nodeids=[1,2], "
        "target_ids=[0,0], target_weights=[1.0,2.0], n_targets=1>",
        {},
    ),
)
