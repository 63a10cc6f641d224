"""What ONNX Runtime itself answers, in processes that may crash, hang or take much memory.

Its sums of integer products are exact: without instructions for products of uint8 and int8 it adds
two of them in 16 bits, and only `session.x64quantprecision` keeps these from overflowing.

python -m tools.zoo.reference MODEL REQUESTS ANSWERS SEED EXACT
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

from tools.zoo.comparison import largest_error
from tools.zoo.inputs import Array, Inputs
from tools.zoo.rounding import CHANGE, changed_sums

LIMIT_SECONDS = 120.0
LIMIT_BYTES = 8 << 30
_EXACT_PRODUCTS = ("session.x64quantprecision", "1")
_CHANGES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The outputs by name, or what happened instead.

    Attributes:
        failure: what ONNX Runtime said, or how its process ended; "" if there are outputs.
    """

    outputs: Mapping[str, Array]
    failure: str = ""


def answers(
    model: Path, requests: Sequence[Inputs], *, seed: int = 0, exact: bool = True
) -> list[Answer]:
    """An answer to each request. A process that ends takes only the request that ended it along.

    Args:
        seed: of the changes that are made to the network's sums; 0 makes none.
        exact: whether sums of integer products are; else they are as ONNX Runtime has them.
    """
    options = [str(seed), "exact" if exact else ""]
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
        The largest error of its answers after the float inputs and the network's sums have been
        changed as `rounding` says; no backend can be held to less.
    """
    errors = [
        largest_error(one.outputs, other.outputs)[0]
        for seed in range(1, 1 + _CHANGES)
        for one, other in zip(
            answers(model, [_changed(each, seed) for each in requests], seed=seed),
            expected,
            strict=True,
        )
        if not one.failure and not other.failure
    ]
    return max(errors, default=0.0)


def _changed(request: Inputs, seed: int) -> Inputs:
    """The request with every float made larger or smaller by as much as sums are changed."""
    random = np.random.default_rng(seed)
    arrays = {
        name: (array * (1 + CHANGE * random.choice((-1, 1), array.shape))).astype(array.dtype)
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
            [sys.executable, "-m", "tools.zoo.reference", *arguments],
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

    model, asked, answered, seed, exact = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # quantised LSTMs give other numbers with two
    options.log_severity_level = 4
    if exact:
        options.add_session_config_entry(*_EXACT_PRODUCTS)
    network = changed_sums(Path(model), int(seed)) if int(seed) else model
    session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
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
