from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.runtime.system.processors import cpu_quota, usable_processors


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_process_may_use_at_least_one_and_at_most_its_affinity() -> None:
    assert 1 <= usable_processors() <= len(os.sched_getaffinity(0))


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_processors(tmp_path, affinity=6) == 6


@pytest.mark.parametrize(
    ("quota", "processors"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("1000000 100000", 8),
        ("", 8),
        ("garbage", 8),
        ("100000 0", 8),
    ],
)
def test_a_quota_is_rounded_up_and_bounds_the_affinity(
    tmp_path: Path, quota: str, processors: int
) -> None:
    root = lay_out(
        tmp_path,
        {"proc/self/cgroup": "0::/app.slice\n", "sys/fs/cgroup/app.slice/cpu.max": quota},
    )
    assert usable_processors(root, affinity=8) == processors


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/container/cpu.max": "max 100000",
            "sys/fs/cgroup/pod/cpu.max": "250000 100000",
            "sys/fs/cgroup/cpu.max": "800000 100000",
        },
    )
    assert cpu_quota(root) == 2.5
    assert usable_processors(root, affinity=8) == 3


@pytest.mark.parametrize("path", ["/", "/../other", "/kubepods/pod1/of/the/host"])
def test_a_container_sees_its_own_group_at_the_mount(tmp_path: Path, path: str) -> None:
    root = lay_out(
        tmp_path,
        {"proc/self/cgroup": f"0::{path}\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"},
    )
    assert usable_processors(root, affinity=8) == 1


@pytest.mark.parametrize("folder", ["cpu,cpuacct", "cpu"])
def test_version_1_has_quota_and_period_in_two_files(tmp_path: Path, folder: str) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "3:memory:/a\n2:cpu,cpuacct:/docker/a\n1:cpuset:/a\n",
            f"sys/fs/cgroup/{folder}/docker/a/cpu.cfs_quota_us": "300000\n",
            f"sys/fs/cgroup/{folder}/docker/a/cpu.cfs_period_us": "100000\n",
            f"sys/fs/cgroup/{folder}/cpu.cfs_quota_us": "-1\n",
            f"sys/fs/cgroup/{folder}/cpu.cfs_period_us": "100000\n",
        },
    )
    assert usable_processors(root, affinity=8) == 3


def test_version_2_beside_version_1_is_found(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/cgroup": "1:memory:/a\n0::/a\n",
            "sys/fs/cgroup/unified/a/cpu.max": "200000 100000",
        },
    )
    assert usable_processors(root, affinity=8) == 2
