"""What ONNX Runtime itself answers, in processes that may crash, hang or take much memory.

python -m tests.zoo.reference MODEL REQUESTS ANSWERS [as-it-is]
"""

from __future__ import annotations

import pickle
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from tests.zoo.comparison import largest_error
from tests.zoo.inputs import Array, Inputs

LIMIT_SECONDS = 120.0
LIMIT_BYTES = 8 << 30
_AS_IT_IS = "as-it-is"  # without graph optimisations
_CHANGES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The outputs by name, or what happened instead.

    Attributes:
        failure: what ONNX Runtime said, or how its process ended; "" if there are outputs.
    """

    outputs: Mapping[str, Array]
    failure: str = ""


def answers(model: Path, requests: Sequence[Inputs], *, optimised: bool = True) -> list[Answer]:
    """An answer to each request. A process that ends takes only the request that ended it along."""
    options = [] if optimised else [_AS_IT_IS]
    found: list[Answer] = []
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "requests"), Path(folder, "answers")
        while len(found) < len(requests):
            asked.write_bytes(pickle.dumps([dict(each.arrays) for each in requests[len(found) :]]))
            answered.write_bytes(b"")
            ended = _run(str(model), str(asked), str(answered), *options)
            found += _read(answered)
            if ended:
                found.append(Answer({}, ended))
    return found


def own_error(model: Path, requests: Sequence[Inputs], expected: Sequence[Answer]) -> float:
    """How far ONNX Runtime's answers move where only rounding should.

    Returns:
        The largest finite error of its answers without graph optimisations, and of those to inputs
        that are changed by one part in a million; for a network that makes rounding larger, no
        backend can be held to less.
    """
    changed = [_changed(each, seed) for seed in range(_CHANGES) for each in requests]
    found = [*answers(model, requests, optimised=False), *answers(model, changed)]
    errors = [
        largest_error(one.outputs, other.outputs)[0]
        for one, other in zip(found, [*expected] * (1 + _CHANGES), strict=True)
        if not one.failure and not other.failure
    ]
    return max((error for error in errors if np.isfinite(error)), default=0.0)


def _changed(request: Inputs, seed: int) -> Inputs:
    """The request with every float made larger or smaller by one part in a million."""
    random = np.random.default_rng(seed)
    arrays = {
        name: (array * (1 + 1e-6 * random.choice((-1, 1), array.shape))).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in request.arrays.items()
    }
    return Inputs(request.sizes, arrays)


def version() -> str:
    """ONNX Runtime's."""
    return metadata.version("onnxruntime")


def _run(*arguments: str) -> str:
    """Runs a process to its end; how that was, if it was not as it should be."""
    try:
        process = subprocess.run(
            [sys.executable, "-m", "tests.zoo.reference", *arguments],
            timeout=LIMIT_SECONDS,
            capture_output=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"ran longer than {LIMIT_SECONDS:g} s"
    if process.returncode < 0:
        return f"ended by {signal.Signals(-process.returncode).name}"
    if process.returncode:
        return process.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return ""


def _read(path: Path) -> list[Answer]:
    """What was written before the process ended."""
    found = []
    with path.open("rb") as file:
        while True:
            try:
                found.append(Answer(*pickle.load(file)))
            except (EOFError, pickle.UnpicklingError):
                return found


def main() -> None:
    """Runs the requests; the answers follow each other in a file."""
    import onnxruntime  # the caller must not load it: it may end its process

    model, asked, answered, *as_it_is = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # quantised LSTMs give other numbers with two
    options.log_severity_level = 4
    if as_it_is:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    with Path(answered).open("wb") as file:
        for request in pickle.loads(Path(asked).read_bytes()):
            try:
                answer = dict(zip(names, session.run(None, request), strict=True)), ""
            except Exception as error:  # noqa: BLE001 - whatever it refuses the request with
                answer = {}, str(error).partition("\n")[0]
            pickle.dump(answer, file)
            file.flush()


if __name__ == "__main__":
    main()
