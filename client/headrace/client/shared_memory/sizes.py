"""How many bytes a network's outputs will take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from headrace.client.info import Ports, size_bytes
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import ATTACHMENT_BYTES

MAX_KNOWN: Final = 64

Shapes: TypeAlias = "tuple[tuple[str, tuple[int, ...]], ...]"


class OutputSizes:
    """The sizes of outputs. Fixed sizes come from the network's ports. The others are those of the
    last reply to inputs of the same shapes. Thread-safe: operations on dictionaries are atomic.
    """

    def __init__(self, outputs: Ports) -> None:
        self._names = outputs.names
        sizes = {port.name: size_bytes(port) for port in outputs}
        self._fixed = {name: size for name, size in sizes.items() if size is not None}
        self._last: dict[Shapes, dict[str, int]] = {}

    def expected(self, request: pb.InferRequest) -> dict[str, int]:
        """Name → bytes of the outputs that are to be put into shared memory.

        A request of a session runs once, so it uses only outputs that certainly fit.
        """
        known = self._fixed
        if not request.HasField("session"):
            known = {**self._last.get(_shapes(request), {}), **known}
        wanted = request.outputs or self._names
        return {name: known[name] for name in wanted if known.get(name, 0) > ATTACHMENT_BYTES}

    def learn(self, request: pb.InferRequest, outputs: Mapping[str, Any]) -> None:
        """Remembers the sizes in a reply."""
        if len(self._fixed) == len(self._names):
            return
        if len(self._last) >= MAX_KNOWN:
            self._last.clear()
        self._last[_shapes(request)] = {
            name: value.nbytes
            for name, value in outputs.items()
            if isinstance(value, np.ndarray) and value.dtype != object
        }


def _shapes(request: pb.InferRequest) -> Shapes:
    return tuple((value.name, tuple(value.tensor.shape)) for value in request.inputs)
