"""Makes the networks and cases of this folder: ``python convert.py``, with scikit-learn 1.9.1,
skl2onnx 1.20 and pandas 3.1. The converter's defaults put a ZipMap at the end of each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from skl2onnx import convert_sklearn, to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

FOLDER = Path(__file__).parent
OPSETS = {"": 18, "ai.onnx.ml": 3}
cases = {}


def save(name, pipeline, model, inputs, asked):
    (FOLDER / f"{name}.onnx").write_bytes(model.SerializeToString())
    cases[name] = {
        "inputs": {key: np.asarray(value).tolist() for key, value in inputs.items()},
        "classes": pipeline.classes_.tolist(),
        "labels": pipeline.predict(asked).tolist(),
        "scores": pipeline.predict_proba(asked).round(6).tolist(),
    }


iris = load_iris()
features, names = iris.data.astype("float32"), iris.target_names[iris.target]
pipeline = make_pipeline(StandardScaler(), LogisticRegression())
pipeline.fit(features, names)
some = features[::30]
save("iris", pipeline, to_onnx(pipeline, some, target_opset=OPSETS), {"X": some}, some)

random = np.random.default_rng(0)
table = pd.DataFrame(
    {
        "age": random.normal(40, 10, 60).astype("float32"),
        "fare": random.gamma(2, 15, 60).astype("float32"),
        "port": random.choice(["Cork", "Southampton"], 60).astype(object),
    }
)
survived = ((table.port == "Cork") | (table.age < 30)).astype(int)
columns = ColumnTransformer(
    [
        ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "fare"]),
        ("texts", OneHotEncoder(handle_unknown="ignore"), ["port"]),
    ]
)
pipeline = make_pipeline(columns, RandomForestClassifier(3, max_depth=2, random_state=0))
pipeline.fit(table, survived)
types = {"age": FloatTensorType, "fare": FloatTensorType, "port": StringTensorType}
model = convert_sklearn(
    pipeline,
    initial_types=[(name, kind([None, 1])) for name, kind in types.items()],
    target_opset=OPSETS,
)
some = table[:6]
save("passengers", pipeline, model, {name: some[[name]] for name in some}, some)

texts = ["The cat sat", "Dogs chase a cat", "Stocks FELL today", "Markets rose on news"] * 4
pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
pipeline.fit(texts, ["animals", "animals", "money", "money"] * 4)
model = convert_sklearn(
    pipeline, initial_types=[("text", StringTensorType([None, 1]))], target_opset=OPSETS
)
some = texts[:4]
save("texts", pipeline, model, {"text": np.array(some)[:, np.newaxis]}, some)

(FOLDER / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
