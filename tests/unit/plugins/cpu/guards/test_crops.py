"""A Resize that crops is answered as ONNX says, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import InvalidArgument
from headrace.testing.case import parse
from headrace.testing.infer_request import infer_once

_IMAGE = np.arange(12, dtype=np.float32).reshape(1, 1, 4, 3)
_SIZES = """g (float[a,b,c,d] x, float[n] r) => (float[e,f,g,h] y) {
    y = Resize<mode = "MODE", coordinate_transformation_mode = "tf_crop_and_resize">(x, r, , s)
}"""
_SCALES = _SIZES.replace("r, , s", "r, s")


def resized(plugin: Plugin, text: str, mode: str, region: list[float], sizes: Any) -> Any:
    model = parse(text.replace("MODE", mode), {"s": sizes}, opset=13)
    return infer_once(plugin, model, _IMAGE, np.array(region, np.float32))["y"]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    ("text", "sizes"),
    [(_SIZES, np.array([1, 1, 2, 3])), (_SCALES, np.array([1, 1, 0.5, 1], np.float32))],
)
def test_a_cropped_axis_that_keeps_its_size_is_refused(
    plugin: Plugin, text: str, sizes: Any, mode: str
) -> None:
    with pytest.raises(InvalidArgument, match="an axis keeps its size"):
        resized(plugin, text, mode, [0, 0, 0, 0.5, 1, 1, 1, 1], sizes)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [(_SIZES, np.array([1, 1, 2, 3])), (_SCALES, np.array([1, 1, 0.5, 1], np.float32))],
)
def test_an_axis_that_is_not_cropped_may_keep_its_size(
    plugin: Plugin, text: str, sizes: Any
) -> None:
    found = resized(plugin, text, "linear", [0, 0, 1 / 3, 0, 1, 1, 1, 1], sizes)
    np.testing.assert_allclose(found[0, 0], [[3, 4, 5], [9, 10, 11]], rtol=1e-5)
