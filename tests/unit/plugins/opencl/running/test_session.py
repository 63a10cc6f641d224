"""What a network on OPENCL keeps of the shapes that it has seen; nothing here touches a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed: pip install 'headrace[opencl]'")

from headrace.plugins.opencl.backend import thread
from headrace.plugins.opencl.backend.kernel_folder import KernelFolder
from headrace.plugins.opencl.running import session
from headrace.runtime.execution.cancel import CancelToken
from headrace.testing.case import network_of

KERNELS = 4


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[dict[Any, Any]]:
    """Stand-ins for tinygrad's."""
    made: list[dict[Any, Any]] = [{}, {}, {}]
    for name, cache in zip(
        ("to_program_cache", "schedule_cache", "runtime_cache"), made, strict=True
    ):
        monkeypatch.setattr(thread, name, cache)
    return made


@pytest.mark.parametrize(("kept", "left"), [(KERNELS, KERNELS), (KERNELS + 1, 0)])
def test_more_kernels_than_are_enough_are_forgotten(
    caches: list[dict[Any, Any]], kept: int, left: int
) -> None:
    for cache in caches:
        cache.update(dict.fromkeys(range(kept)))
    thread.bound_kernels(KERNELS)
    assert [len(cache) for cache in caches] == [left] * 3


class Watched(session.OpenClSession):
    """Computes nothing.

    Attributes:
        events: what has happened: ``bound``, with four times as many kernels ``bound loosely``,
            ``run``, ``captured``.
        varies: what is said of each run.
    """

    def __init__(self, folder: Path, *, capacity: int = 2, varies: bool = False) -> None:
        text = "any (float[N] x) => (float[N] y) { y = Neg(x) }"
        model = network_of(text).model
        super().__init__(model, "CL:0", capacity, KernelFolder(folder))
        self.events: list[str] = []
        self.varies = varies

    def _evaluate(self, *_: Any) -> tuple[dict[str, Any], bool]:
        self.events.append("run")
        return {}, self.varies

    def _bound(self, most: int = thread.ENOUGH_KERNELS) -> None:
        self.events.append("bound" if most == thread.ENOUGH_KERNELS else "bound loosely")

    def run_of(self, size: int, *, profiled: bool = False) -> None:
        x = np.ones(size, np.float32)
        self.run({"x": x}, CancelToken(), (lambda *_: None) if profiled else None)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    network = Watched(tmp_path)

    class Captured:
        def __init__(self, *_: Any) -> None:
            self.is_made = True

        def __call__(self, _: Any) -> list[Any]:
            network.events.append("captured")
            return [None]

        def close(self) -> None:
            pass

    monkeypatch.setattr(session, "_Captured", Captured)
    return network


def test_kernels_are_bounded_as_shapes_come_and_not_while_one_is_captured(
    watched: Watched,
) -> None:
    for size in (1, 1, 2, 2):
        watched.run_of(size)
    assert watched.events == ["bound", "run", "captured"] * 2


def test_they_are_when_runs_are_profiled_too(watched: Watched) -> None:
    watched.run_of(1, profiled=True)
    watched.run_of(1, profiled=True)
    watched.run_of(1)
    assert watched.events == ["bound", "run", "bound loosely", "run", "captured"]


@pytest.mark.parametrize("options", [{"capacity": 0}, {"varies": True}], ids=str)
def test_what_is_not_captured_is_bounded_each_time(tmp_path: Path, options: dict[str, Any]) -> None:
    network = Watched(tmp_path, **options)
    for _ in range(3):
        network.run_of(1)
    assert network.events[2:] == ["bound loosely", "run"] * 2
