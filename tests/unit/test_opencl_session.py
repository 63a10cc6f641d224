"""What a network on OPENCL keeps of the shapes that it has seen; nothing here touches a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed: pip install 'headrace[opencl]'")

from headrace.plugins.opencl import backend, session
from headrace.plugins.opencl.kernel_folder import KernelFolder
from headrace.runtime.cancel import CancelToken
from headrace.runtime.network import Network
from headrace.testing.case import parse

KERNELS = 4


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[dict[Any, Any]]:
    """Stand-ins for tinygrad's, of which four entries are enough."""
    monkeypatch.setattr(backend, "_KERNELS", KERNELS)
    made: list[dict[Any, Any]] = [{}, {}, {}]
    for name, cache in zip(
        ("to_program_cache", "schedule_cache", "runtime_cache"), made, strict=True
    ):
        monkeypatch.setattr(backend, name, cache)
    return made


@pytest.mark.parametrize(("kept", "left"), [(KERNELS, KERNELS), (KERNELS + 1, 0)])
def test_more_kernels_than_are_enough_are_forgotten(
    caches: list[dict[Any, Any]], kept: int, left: int
) -> None:
    for cache in caches:
        cache.update(dict.fromkeys(range(kept)))
    backend.bound_kernels()
    assert [len(cache) for cache in caches] == [left] * 3


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(session, "bound_kernels", lambda: seen.append("bound"))
    return seen


def watched(events: list[str], capacity: int, folder: Path) -> session.Session:
    class Watched(session.Session):
        def _evaluate(self, *_: Any) -> tuple[dict[str, Any], bool]:
            events.append("run")
            return {}, True

    text = "any (float[N] x) => (float[N] y) { y = Neg(x) }"
    model = Network.from_bytes(parse(text).SerializeToString()).model
    return Watched(model, "CL:0", capacity, KernelFolder(folder))


@pytest.mark.parametrize("timed", [None, lambda *_: None], ids=["plain", "profiled"])
def test_kernels_are_bounded_as_shapes_come_and_not_while_one_is_captured(
    events: list[str], timed: Any, tmp_path: Path
) -> None:
    network = watched(events, 2, tmp_path)
    for size in (1, 1, 2, 3):
        network.run({"x": np.ones(size, np.float32)}, CancelToken(), timed)
    assert events == ["bound", "run", "run", "bound", "run", "bound", "run"]


def test_kernels_are_bounded_before_each_run_of_what_is_not_captured(
    events: list[str], tmp_path: Path
) -> None:
    network = watched(events, 0, tmp_path)
    for _ in range(2):
        network.run({"x": np.ones(1, np.float32)}, CancelToken())
    assert events == ["bound", "run"] * 2
