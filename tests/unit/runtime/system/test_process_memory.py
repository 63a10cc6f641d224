"""The memory of a process and of those that it has started, read from a folder like /proc."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.runtime.system.process_memory import family_bytes

PAGE_BYTES = resource.getpagesize()


def process(processes: Path, name: str, kibibytes: int, children: str = "") -> None:
    """A process that has some memory, and beside it as much of files."""
    folder = processes / name
    (folder / "task" / "1").mkdir(parents=True)
    pages = kibibytes * 1024 // PAGE_BYTES
    (folder / "statm").write_text(f"999999 {2 * pages} {pages} 12 0 345 0\n")
    (folder / "task" / "1" / "children").write_text(children)


def test_a_process_counts_with_its_children_and_without_pages_of_files(tmp_path: Path) -> None:
    process(tmp_path, "self", 64, "7 8")
    process(tmp_path, "7", 128, "9")
    process(tmp_path, "9", 256)
    assert family_bytes(tmp_path) == 448 * 1024  # the process 8 has ended


def test_it_is_no_error_that_no_descriptor_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(tmp_path, "self", 64, "7")
    process(tmp_path, "7", 128)

    def none_left(_: Path) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "iterdir", none_left)
    assert family_bytes(tmp_path) == 64 * 1024


def test_what_a_real_process_of_this_one_takes_is_counted() -> None:
    takes = "held = bytearray(b'x') * 2**26; print(flush=True); input()"
    before = family_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", takes], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert family_bytes() - before > 2**25
        child.communicate(b"\n")
