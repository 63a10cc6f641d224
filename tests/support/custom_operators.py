"""Custom operators that somebody else wrote: those of the package onnxruntime-extensions."""

from __future__ import annotations

import os
from typing import Final

import numpy as np
import pytest

from headrace.testing.case import Case, parse

DOMAIN: Final = "ai.onnx.contrib"


def library() -> str:
    """The path of its library; skips the test where the package is not installed."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    # It sets this, and the servers of other tests would inherit it.
    os.environ.pop("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", None)
    return str(extensions.get_library_path())


def word_lengths() -> Case:
    """Words to the squares of their lengths: two custom layers and one of ONNX's own."""
    text = f"""words (string[n] x) => (string[n] u, int64[n] y) {{
        [upper] u = {DOMAIN}.StringUpper(x)
        [length] l = {DOMAIN}.StringLength(u)
        [square] y = Mul(l, l)
    }}"""
    return Case("words", parse(text), {"x": np.array(["head", "race", "q"], np.object_)})
