"""A process that finds which layers can be tried, because ONNX Runtime ends over some."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Self

from headrace.testing.guarded import GuardedProcess
from tools.claims.layer import Layer
from tools.claims.trial import run_judge

_SECONDS: Final = 20.0


class Reference:
    """Asks the process, and starts another one where it ends."""

    def __init__(self) -> None:
        self._process: GuardedProcess | None = None

    def is_valid(self, layer: Layer) -> bool:
        """Whether ONNX Runtime runs the layer, its sizes are known before, and no limit is in the
        way."""
        process = self._process = self._process or GuardedProcess(run_judge, ())
        with suppress(EOFError, OSError):
            process.connection.send(layer)
            if process.connection.poll(_SECONDS):
                return bool(process.connection.recv())
        process.kill()
        self._process = None
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.end()
