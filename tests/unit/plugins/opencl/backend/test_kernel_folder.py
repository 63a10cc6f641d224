"""OPENCL's kernels on disk: bounded while in use, and left alone while one makes some."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.plugins.opencl.backend import kernel_folder
from headrace.plugins.opencl.backend.kernel_folder import KERNELS, POCL, KernelFolder
from tests.support.manual_clock import ManualClock

MOST = 100_000
TABLE = "compile_cl_22"


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_folder, "MAX_KERNEL_BYTES", MOST)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ours(tmp_path: Path, clock: ManualClock) -> Iterator[KernelFolder]:
    folder = KernelFolder(tmp_path, clock)
    yield folder
    folder.close()


@pytest.fixture
def theirs(tmp_path: Path, clock: ManualClock) -> Iterator[KernelFolder]:
    """The same folder, as another process opens it."""
    folder = KernelFolder(tmp_path, clock)
    yield folder
    folder.close()


def tinygrad(folder: Path) -> sqlite3.Connection:
    """As tinygrad opens its file."""
    kernels = sqlite3.connect(folder / KERNELS, isolation_level="IMMEDIATE")
    kernels.execute("PRAGMA journal_mode=WAL").fetchone()
    kernels.execute(f"CREATE TABLE IF NOT EXISTS '{TABLE}' (key text, val blob, PRIMARY KEY (key))")
    return kernels


def keep(kernels: sqlite3.Connection, folder: Path, size: int) -> None:
    """Half of it by tinygrad, half by PoCL."""
    kernels.execute(f"REPLACE INTO '{TABLE}' VALUES ('k', ?)", (bytes(size // 2),))
    kernels.commit()
    (folder / POCL / "AB" / "CD").mkdir(parents=True, exist_ok=True)
    (folder / POCL / "AB" / "CD" / "kernel.so").write_bytes(bytes(size // 2))


def are_kept(folder: Path) -> bool:
    return (folder / POCL / "AB").exists()


def test_a_folder_that_has_grown_too_large_is_emptied_while_it_is_used(
    tmp_path: Path, ours: KernelFolder
) -> None:
    (tmp_path / "another").touch()
    with closing(tinygrad(tmp_path)) as kernels:
        keep(kernels, tmp_path, 2 * MOST)
        (tmp_path / POCL / "tempfile_of_a_crash").touch()
        ours.bound()
        assert [*(tmp_path / POCL).iterdir()] == []
        assert sum(file.stat().st_size for file in tmp_path.glob(f"{KERNELS}*")) < MOST
        assert kernels.execute(f"SELECT * FROM '{TABLE}'").fetchall() == []
        keep(kernels, tmp_path, 2)
    assert (tmp_path / "another").exists()


def test_one_that_has_not_stays(tmp_path: Path, ours: KernelFolder) -> None:
    with closing(tinygrad(tmp_path)) as kernels:
        keep(kernels, tmp_path, MOST // 4)
        ours.bound()
        assert len(kernels.execute(f"SELECT * FROM '{TABLE}'").fetchall()) == 1
    assert are_kept(tmp_path)


def test_an_empty_folder_is_none_the_worse(tmp_path: Path, ours: KernelFolder) -> None:
    (tmp_path / "other").write_bytes(bytes(MOST + 1))
    ours.bound()
    assert not (tmp_path / KERNELS).exists()


def test_it_looks_once_a_minute_at_most(
    tmp_path: Path, ours: KernelFolder, clock: ManualClock
) -> None:
    ours.bound()
    with closing(tinygrad(tmp_path)) as kernels:
        keep(kernels, tmp_path, 2 * MOST)
    clock.advance(59)
    ours.bound()
    assert are_kept(tmp_path)
    clock.advance(1)
    ours.bound()
    assert not are_kept(tmp_path)


def test_while_another_process_makes_kernels_it_stays_and_is_emptied_soon_after(
    tmp_path: Path, ours: KernelFolder, theirs: KernelFolder, clock: ManualClock
) -> None:
    with closing(tinygrad(tmp_path)) as kernels:
        keep(kernels, tmp_path, 2 * MOST)
    with theirs.making():
        ours.bound()
        assert are_kept(tmp_path)
    clock.advance(1)
    ours.bound()
    assert not are_kept(tmp_path)


def test_it_may_be_emptied_within_ones_own_load_which_goes_on_to_make_kernels(
    tmp_path: Path, ours: KernelFolder, theirs: KernelFolder, clock: ManualClock
) -> None:
    with closing(tinygrad(tmp_path)) as kernels, ours.making():
        keep(kernels, tmp_path, 2 * MOST)
        ours.bound()
        assert not are_kept(tmp_path)
        with ours.making():
            keep(kernels, tmp_path, 2 * MOST)
        theirs.bound()
        assert are_kept(tmp_path)
    clock.advance(1)
    theirs.bound()
    assert not are_kept(tmp_path)
