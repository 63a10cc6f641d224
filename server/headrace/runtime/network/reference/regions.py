"""Regions of an image, as onnx's reference evaluator should compute them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx.reference.ops.op_roi_align import RoiAlign as OpRoiAlign

from headrace.runtime.network.reference.steps import refuse_steps

_OF_SAMPLES: Final = (
    "coordinate_transformation_mode",
    "output_height",
    "output_width",
    "sampling_ratio",
    "spatial_scale",
)
_MOST_SAMPLES: Final = 262_144
"""The most samples in one region. onnx makes objects of 0.5 KB for each sample."""


class RoiAlign(OpRoiAlign):
    """Takes a bounded number of samples. Without a `sampling_ratio`, their number follows from the
    sizes of the regions, which are values.

    https://onnx.ai/onnx/operators/onnx__RoiAlign.html
    """

    def _run(  # type: ignore[override]
        self, x: Any, rois: Any, batch_indices: Any, **options: Any
    ) -> Any:
        given = {name: options.get(name) or getattr(self, name) for name in _OF_SAMPLES}
        height, width = given["output_height"], given["output_width"]
        ratio = given["sampling_ratio"]
        sides = np.subtract(rois[:, 2:4], rois[:, :2], dtype=np.float64) * given["spatial_scale"]
        if given["coordinate_transformation_mode"].lower() != "half_pixel":
            sides = np.maximum(sides, 1)
        grids = np.ceil(sides / [width, height]).prod(axis=1)
        grids = np.full(len(rois), float(ratio) ** 2) if ratio > 0 else grids
        # onnx's operator refuses NaN itself.
        samples = np.nan_to_num(np.maximum(grids, 1), posinf=np.inf) * height * width
        refuse_steps(samples.max(initial=0), _MOST_SAMPLES)
        refuse_steps(samples.sum() * x.shape[1])
        return super()._run(x, rois, batch_indices, **options)  # type: ignore[no-untyped-call]
