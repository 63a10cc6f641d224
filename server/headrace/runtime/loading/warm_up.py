"""Runs the requests of a warm-up on a network that is not published yet."""

from __future__ import annotations

import threading
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from headrace.runtime.config.standard_keys import EXECUTION_TIMEOUT
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import FailedPrecondition, HeadraceError, QueueFull
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job, Sequence
from headrace.runtime.network.network import Port
from headrace.runtime.network.values import Value
from headrace.runtime.system.atomic_file import read_file
from headrace.runtime.transform.warm_up import WarmUp

MAX_BYTES: Final = 1 << 30
"""The most bytes of a warm-up's inputs."""
_NO_LIMIT_SECONDS: Final = 600.0
_NAME: Final = "warmup"


def run_warm_up(executable: ExecutableNetwork, warm_up: WarmUp, token: CancelToken) -> None:
    """Runs the requests while the calling thread waits, each within EXECUTION_TIMEOUT.

    Args:
        token: the load's token. It also cancels a request that runs.

    Raises:
        FailedPrecondition: a request fails, or its inputs cannot be made. The error says why.
        QueueFull: the device has too much to do.
    """
    if not warm_up.count:
        return
    seconds = executable.config.get(EXECUTION_TIMEOUT) or _NO_LIMIT_SECONDS
    inputs = inputs_of(executable, warm_up)
    for _ in range(warm_up.count):
        _run(executable, inputs, time.monotonic() + seconds, token)


def _run(
    executable: ExecutableNetwork, inputs: Mapping[str, Value], deadline: float, token: CancelToken
) -> None:
    ended = threading.Event()
    sequence = Sequence(_NAME, start=True, end=True) if executable.states else None
    job = Job(
        inputs,
        lambda _: ended.set(),
        deadline=deadline,
        token=token.child(),
        trace=_NAME,
        sequence=sequence,
    )
    try:
        executable.submit(job)
        ended.wait()
        if job.error is not None:
            raise job.take_error()
    except QueueFull:
        raise
    except HeadraceError as error:
        message = f"its warm-up failed: {error}"
        raise FailedPrecondition(message, field=error.field or _NAME) from error


def inputs_of(executable: ExecutableNetwork, warm_up: WarmUp) -> dict[str, Value]:
    """The inputs of a warm-up's requests.

    Raises:
        FailedPrecondition: they cannot be made. The error says why.
    """
    given = _read(warm_up.file) if warm_up.file is not None else {}
    inputs = {}
    for port in executable.inputs:
        if port.name in given:
            inputs[port.name] = given.pop(port.name)
        elif port.name in warm_up.shapes or not port.optional:
            inputs[port.name] = _made(port, warm_up)
    unknown = [*given, *(warm_up.shapes.keys() - {port.name for port in executable.inputs})]
    if unknown:
        raise FailedPrecondition(f"the network has no input {unknown[0]!r}", field=_NAME)
    return inputs


def _made(port: Port, warm_up: WarmUp) -> Value:
    if port.kind == "sequence":
        return []
    shape = warm_up.shapes.get(port.name)
    if shape is None:
        shape = tuple(size if isinstance(size, int) else 1 for size in port.shape or ())
    is_text = port.dtype == ir.DataType.STRING
    dtype = np.dtype(object) if is_text else port.dtype.numpy()
    size = 1
    for length in shape:
        size *= max(length, 1)
    if len(shape) > 64 or size * dtype.itemsize > MAX_BYTES:
        message = f"input {port.name!r} takes more than {MAX_BYTES} bytes; give warmup.shapes"
        raise FailedPrecondition(message, field=_NAME)
    if port.name in warm_up.raw:
        return _raw(port, warm_up.raw[port.name], shape)
    if is_text:
        return np.full(shape, b"", object)
    if port.name in warm_up.random:
        random = np.random.default_rng(0)
        if dtype.type in (np.float32, np.float64):
            return random.random(shape, dtype.type)
        return random.integers(0, 2, shape, np.uint8).astype(dtype)
    return np.zeros(shape, dtype)


def _raw(port: Port, file: Path, shape: tuple[int, ...]) -> Value:
    """The tensor whose bytes a file holds."""
    if port.dtype == ir.DataType.STRING:
        message = f"input {port.name!r} takes strings, which have no raw form"
        raise FailedPrecondition(message, field=file.name)
    try:
        data = read_file(file, MAX_BYTES)
        return np.frombuffer(data, port.dtype.numpy()).reshape(shape)
    except OSError as error:
        raise FailedPrecondition(f"cannot be read: {error.strerror}", field=file.name) from error
    except ValueError as error:
        message = f"does not hold the {list(shape)} elements of input {port.name!r}: {error}"
        raise FailedPrecondition(message, field=file.name) from error


def _read(file: Path) -> dict[str, Any]:
    """The arrays of an ``.npz`` file. It never unpickles data."""
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_BYTES:
            raise FailedPrecondition(f"has more than {MAX_BYTES} bytes", field=file.name)
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except FailedPrecondition:
        raise
    except Exception as error:  # zipfile, zlib and NumPy have many kinds for damaged files
        message = f"is not a file of arrays, as numpy.savez writes them: {error}"
        raise FailedPrecondition(message, field=file.name) from error
