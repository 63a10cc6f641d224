"""Callers that infer without a pause while something happens to the server's devices."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc
import numpy as np

from headrace.testing.case import Case, parse
from tests.integration.harness import CALL_SECONDS, Server


def relu(name: str) -> Case:
    """``y = Relu(x)``, float32[n]."""
    return Case(name, parse("g (float[n] x) => (float[n] y) { y = Relu(x) }"), {})


class Callers:
    """Each checks each of its answers from a network that `relu` made. Thread-safe; `_changed`
    guards the numbers.

    Attributes:
        outcomes: OK, WRONG, or the status' name, to how often.
    """

    def __init__(self, server: Server, network: str, callers: int = 4) -> None:
        self._server = server
        self._network = network
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self.outcomes: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(callers)
        self._ends = [self._pool.submit(self._call, seed) for seed in range(callers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for end in self._ends:
            end.result()

    def await_ok(self, more: int) -> None:
        """Until there are that many more good answers than now."""
        with self._changed:
            wanted = self.outcomes["OK"] + more
            assert self._changed.wait_for(lambda: self.outcomes["OK"] >= wanted, CALL_SECONDS), (
                f"{wanted} good answers did not come: {self.outcomes}"
            )

    def _call(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not self._stop.is_set():
            x = rng.standard_normal(4).astype(np.float32)
            try:
                y = self._server.infer(self._network, {"x": x})["y"]
            except grpc.RpcError as error:
                outcome = str(error.code().name)
            else:
                right = isinstance(y, np.ndarray) and np.array_equal(np.maximum(x, 0), y)
                outcome = "OK" if right else "WRONG"
            with self._changed:
                self.outcomes[outcome] += 1
                self._changed.notify_all()
