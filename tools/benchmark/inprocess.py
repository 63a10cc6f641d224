"""ONNX Runtime alone, as many one-thread streams as processors: what a server can at best reach.

Usage: inprocess MODEL SECONDS. Prints runs, seconds and processor seconds.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import onnxruntime

from headrace.runtime.system.processors import usable_processors
from tools.benchmark.busy import keep_busy

DTYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8}


def main(path: str, seconds: float) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    feed = {each.name: np.ones(each.shape, DTYPES[each.type]) for each in session.get_inputs()}
    session.run(None, feed)
    keep_busy([partial(session.run, None, feed)] * usable_processors(), seconds)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
