"""A network of many layers and as many weights as ResNet-50: attention written out, random weights.

Normalisation and GELU are of elementary operators, as exporters before opset 17 and 20 write them;
so there is much for a compiler to find.
"""

from __future__ import annotations

import numpy as np
import onnx

from headrace.testing.case import parse
from headrace.testing.networks import random

BLOCKS, FEATURES, HEADS, POSITIONS = 24, 288, 6, 64


def deep_transformer() -> onnx.ModelProto:
    """``float[B,64,288] x`` to ``float[B,64,288] y``; 96 MB of weights, 1,177 layers."""
    weights: dict[str, np.ndarray] = {
        "heads": np.array([0, 0, HEADS, FEATURES // HEADS], np.int64),
        "joined": np.array([0, 0, FEATURES], np.int64),
        "root": np.array((FEATURES // HEADS) ** 0.5, np.float32),
        "epsilon": np.array(1e-5, np.float32),
        "half": np.array(0.5, np.float32),
        "one": np.array(1.0, np.float32),
        "two": np.array(2.0, np.float32),
        "root_two": np.array(2**0.5, np.float32),
        "last": np.array([-1], np.int64),
    }
    lines = ["x0 = Identity(x)"]
    for block in range(BLOCKS):
        lines += _block(block, weights)
    lines.append(f"y = Identity(x{BLOCKS})")
    ports = f"(float[B,{POSITIONS},{FEATURES}] x) => (float[B,{POSITIONS},{FEATURES}] y)"
    return parse(f"transformer {ports} {{ {' '.join(lines)} }}", weights)


def _block(n: int, weights: dict[str, np.ndarray]) -> list[str]:
    lines = _normalised(f"a{n}", f"x{n}", weights)
    for name, axes in (("q", "0,2,1,3"), ("k", "0,2,3,1"), ("v", "0,2,1,3")):
        lines += [
            *_dense(f"{name}d{n}", f"a{n}", (FEATURES, FEATURES), weights),
            f"{name}s{n} = Reshape({name}d{n}, heads)",
            f"{name}{n} = Transpose<perm = [{axes}]>({name}s{n})",
        ]
    return [
        *lines,
        f"score{n} = MatMul(q{n}, k{n})",
        f"scaled{n} = Div(score{n}, root)",
        f"share{n} = Softmax<axis = -1>(scaled{n})",
        f"mixed{n} = MatMul(share{n}, v{n})",
        f"back{n} = Transpose<perm = [0,2,1,3]>(mixed{n})",
        f"flat{n} = Reshape(back{n}, joined)",
        *_dense(f"o{n}", f"flat{n}", (FEATURES, FEATURES), weights),
        f"m{n} = Add(x{n}, o{n})",
        *_normalised(f"b{n}", f"m{n}", weights),
        *_dense(f"up{n}", f"b{n}", (FEATURES, 4 * FEATURES), weights),
        f"e1{n} = Div(up{n}, root_two)",
        f"e2{n} = Erf(e1{n})",
        f"e3{n} = Add(e2{n}, one)",
        f"e4{n} = Mul(up{n}, e3{n})",
        f"gelu{n} = Mul(e4{n}, half)",
        *_dense(f"down{n}", f"gelu{n}", (4 * FEATURES, FEATURES), weights),
        f"x{n + 1} = Add(m{n}, down{n})",
    ]


def _dense(name: str, x: str, shape: tuple[int, int], weights: dict[str, np.ndarray]) -> list[str]:
    weights[f"{name}_w"] = random(*shape, scale=0.05, seed=len(weights))
    weights[f"{name}_b"] = random(shape[1], scale=0.05, seed=len(weights))
    return [f"{name}_p = MatMul({x}, {name}_w)", f"{name} = Add({name}_p, {name}_b)"]


def _normalised(name: str, x: str, weights: dict[str, np.ndarray]) -> list[str]:
    weights[f"{name}_w"] = random(FEATURES, seed=len(weights))
    weights[f"{name}_b"] = random(FEATURES, scale=0.05, seed=len(weights))
    return [
        f"{name}_m = ReduceMean({x}, last)",
        f"{name}_c = Sub({x}, {name}_m)",
        f"{name}_s = Pow({name}_c, two)",
        f"{name}_v = ReduceMean({name}_s, last)",
        f"{name}_e = Add({name}_v, epsilon)",
        f"{name}_r = Sqrt({name}_e)",
        f"{name}_d = Div({name}_c, {name}_r)",
        f"{name}_g = Mul({name}_d, {name}_w)",
        f"{name} = Add({name}_g, {name}_b)",
    ]
