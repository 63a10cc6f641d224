"""Makes networks in a process that may end or hang: each layer that is drawn runs on bare ONNX
Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Final

from headrace.testing.guarded import GuardedProcess
from tools.fuzz.devices.networks.generator import NetworkGenerator
from tools.fuzz.devices.variant import Variant

_LIMIT_SECONDS: Final = 60.0
"""The time that a network may take. Some kernels never end: Conv without channels is one."""


def networks(seed: int, numbers: Iterable[int]) -> Iterator[Variant]:
    """The networks of a seed, without those whose making ends the process, or does not end."""
    process: GuardedProcess | None = None
    try:
        for number in numbers:
            if process is None:
                process = GuardedProcess(_make, (seed,))
            try:
                process.connection.send(number)
                if not process.connection.poll(_LIMIT_SECONDS):
                    raise TimeoutError
                variant: Variant = process.connection.recv()
            except (EOFError, OSError):
                process.kill()
                process = None
            else:
                yield variant
    finally:
        if process is not None:
            process.kill()


def _make(seed: int, connection: Connection) -> None:
    generator = NetworkGenerator(seed)
    try:
        while True:
            connection.send(generator.variant(connection.recv()))
    except (EOFError, BrokenPipeError):  # nobody asks any more
        return
