"""A network as large as all-MiniLM-L6: six layers of attention, 384 features, random weights."""

from __future__ import annotations

import numpy as np
import onnx

from headrace.testing.case import parse
from headrace.testing.networks import random

FEATURES, HEADS, INNER, LAYERS, WORDS = 384, 12, 1536, 6, 8192


def minilm() -> onnx.ModelProto:
    """``int64[B,S] tokens`` to ``float32[B,384] sentence``, the mean over the tokens."""
    weights = {"words": random(WORDS, FEATURES, scale=0.05)}
    lines = ["x0 = Gather(words, tokens)"]
    for layer in range(LAYERS):
        lines += _layer(layer, weights)
    lines.append(f"sentence = ReduceMean<keepdims = 0>(x{LAYERS}, tokens_axis)")
    weights["tokens_axis"] = np.array([1], np.int64)
    text = f"minilm (int64[B,S] tokens) => (float[B,{FEATURES}] sentence) {{ {' '.join(lines)} }}"
    return parse(text, weights)


def _layer(n: int, weights: dict[str, np.ndarray]) -> list[str]:
    width = FEATURES // HEADS
    for name in "qkvo":
        weights[f"w{name}{n}"] = random(FEATURES, FEATURES, scale=0.05, seed=n)
    weights[f"up{n}"] = random(FEATURES, INNER, scale=0.05, seed=n)
    weights[f"down{n}"] = random(INNER, FEATURES, scale=0.02, seed=n)
    for name in "ab":
        weights[f"scale_{name}{n}"] = np.ones(FEATURES, np.float32)
        weights[f"shift_{name}{n}"] = np.zeros(FEATURES, np.float32)
    weights["heads"] = np.array([0, 0, HEADS, width], np.int64)
    weights["merged"] = np.array([0, 0, FEATURES], np.int64)
    weights["root"] = np.array(np.sqrt(width), np.float32)
    split = [
        f"{name}m{n} = MatMul(x{n}, w{name}{n}) "
        f"{name}r{n} = Reshape({name}m{n}, heads) "
        f"{name}{n} = Transpose<perm = {[0, 2, 3, 1] if name == 'k' else [0, 2, 1, 3]}>({name}r{n})"
        for name in "qkv"
    ]
    return [
        *split,
        f"d{n} = MatMul(q{n}, k{n}) s{n} = Div(d{n}, root) p{n} = Softmax<axis = -1>(s{n})",
        f"m{n} = MatMul(p{n}, v{n}) t{n} = Transpose<perm = [0,2,1,3]>(m{n})",
        f"c{n} = Reshape(t{n}, merged) o{n} = MatMul(c{n}, wo{n}) r{n} = Add(x{n}, o{n})",
        f"n{n} = LayerNormalization(r{n}, scale_a{n}, shift_a{n})",
        f'u{n} = MatMul(n{n}, up{n}) g{n} = Gelu<approximate = "tanh">(u{n})',
        f"f{n} = MatMul(g{n}, down{n}) a{n} = Add(n{n}, f{n})",
        f"x{n + 1} = LayerNormalization(a{n}, scale_b{n}, shift_b{n})",
    ]
