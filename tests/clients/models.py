"""Writes the models that the clients' tests use; runs in the server's environment."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.testing.case import parse

MODELS = {
    "add": "add (float[2,3] x, float[2,3] y) => (float[2,3] z) { z = Add(x, y) }",
    "double": "double (float[n,m] x) => (float[n,m] y) { y = Add(x, x) }",
    "half": "half (float16[n] x) => (float16[n] y) { y = Add(x, x) }",
    "brain": "brain (bfloat16[n] x) => (bfloat16[n] y) { y = Identity(x) }",
    "softmax": "softmax (float[1,16] x) => (float[1,16] y) { y = Softmax(x) }",
    "speech": """speech (float[b,80,t] audio_signal, int64[b] length) => (float[b,u,8] logprobs) {
        times = Transpose<perm = [0, 2, 1]>(audio_signal)
        eighth = Constant<value_ints = [8]>()
        zero = Constant<value_ints = [0]>()
        end = Constant<value_ints = [1000000]>()
        one = Constant<value_ints = [1]>()
        last = Constant<value_ints = [2]>()
        fewer = Slice(times, zero, end, one, eighth)
        first = Slice(fewer, zero, eighth, last, one)
        logprobs = LogSoftmax<axis = -1>(first)
    }""",
    "text": "text (string[n] x) => (string[n] y) { y = Identity(x) }",
    "keeper": """keeper (float[1] x, float[1] before) => (float[1] y, float[1] after) {
        after = Add(x, before)
        y = Identity(after)
    }""",
}


def write(folder: Path) -> None:
    for name, text in MODELS.items():
        folder.joinpath(f"{name}.onnx").write_bytes(parse(text).SerializeToString())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
