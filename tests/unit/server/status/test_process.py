"""The numbers of the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.server.status.process import memory_limit, process_facts


def test_the_process_is_this_one() -> None:
    facts = process_facts()
    assert facts["pid"] == os.getpid()
    assert facts["resident_memory_bytes"] > 1 << 20
    assert facts["cpu_seconds_total"] > 0
    assert 0 < facts["open_fds"] < facts["max_fds"]
    assert facts["processors"] >= 1
    assert facts["threads"] >= 1


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("0::/", {"memory.max": "1000"}, 1000),
        ("0::/", {"memory.max": "max"}, None),
        ("0::/a/b", {"a/memory.max": "500", "a/b/memory.max": "800"}, 500),
        ("0::/../x", {"memory.max": "700"}, 700),
        ("4:memory:/a", {"memory/a/memory.limit_in_bytes": "600"}, 600),
        ("4:memory:/", {"memory/memory.limit_in_bytes": str((1 << 63) - 4096)}, None),
        ("4:cpu:/", {"memory.max": "1"}, None),
        ("0::/gone", {}, None),
    ],
)
def test_the_smallest_limit_of_the_control_groups_counts(
    tmp_path: Path, group: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert memory_limit(tmp_path) == limit


def test_a_system_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
