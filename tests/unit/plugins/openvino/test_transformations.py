"""What OPENVINO computes in another way, so that it is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "openvino", reason="OpenVINO is not installed: pip install 'headrace[openvino]'"
)

from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.testing.case import network_of
from headrace.testing.infer_request import InferRequest


@pytest.mark.parametrize("bounds", ["", ", l", ", , h", ", l, h"])
def test_a_clip_may_lack_bounds(plugin: Plugin, bounds: str) -> None:
    text = f"g (float[2,2] x, float l, float h) => (float[2,2] y) {{ y = Clip(x{bounds}) }}"
    dtype = np.dtype(np.float32)
    x, low, high = np.array([[0, 3], [7, 120]], dtype), dtype.type(2), dtype.type(9)
    request = InferRequest(plugin.load_network(Load(network_of(text, opset=13))))
    found: Any = request.infer({"x": x, "l": np.array(low), "h": np.array(high)})["y"]
    ends = (low if "l" in bounds else x.min(), high if "h" in bounds else x.max())
    np.testing.assert_array_equal(found, np.clip(x, *ends))
