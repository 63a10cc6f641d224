"""Opens and ends ONNX Runtime sessions in this process, which does nothing else.

Reads the path of a network from each line of the standard input, and answers with the seconds of
processor time that a session of it took.
"""

from __future__ import annotations

import sys
import time

import onnxruntime


def main() -> None:
    onnxruntime.set_default_logger_severity(4)
    for line in sys.stdin:
        start = time.process_time()
        session = onnxruntime.InferenceSession(line.strip())
        del session
        print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    main()
