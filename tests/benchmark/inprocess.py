"""ONNX Runtime alone, as many one-thread streams as processors: what a server can at best reach.

Usage: inprocess.py MODEL SECONDS. Prints runs, seconds and processor seconds.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import onnxruntime

from headrace.runtime.processors import usable_processors


def main(path: str, seconds: float) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    feed = {each.name: np.ones(each.shape, np.float32) for each in session.get_inputs()}
    session.run(None, feed)
    counts: list[int] = []
    start, used = time.monotonic(), time.process_time()
    end = start + seconds

    def stream() -> None:
        count = 0
        while time.monotonic() < end:
            session.run(None, feed)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=stream) for _ in range(usable_processors())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(counts), time.monotonic() - start, time.process_time() - used)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
