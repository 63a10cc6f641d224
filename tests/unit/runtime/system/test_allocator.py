from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.runtime.system import allocator
from headrace.runtime.system.allocator import release_memory, tune_allocator

MIB = 2**20

# In a process of its own: the thresholds are the whole process's, and stay.
TUNE = """
import os
from headrace.runtime.system.allocator import tune_allocator
print(sorted(tune_allocator({"MALLOC_TOP_PAD_": "1"}).items()))
"""


def test_thresholds_are_set_but_not_those_that_the_operator_chose() -> None:
    output = subprocess.run(
        [sys.executable, "-c", TUNE], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() in (
        str([("M_ARENA_MAX", 2), ("M_MMAP_THRESHOLD", 16 * MIB), ("M_TRIM_THRESHOLD", 64 * MIB)]),
        "[]",  # not glibc
    )


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_glibc", lambda: None)
    assert tune_allocator({}) == {}
    assert release_memory() is False


def test_memory_can_be_released_at_any_time() -> None:
    release_memory()
    release_memory()
