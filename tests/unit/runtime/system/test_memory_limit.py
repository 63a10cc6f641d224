"""The memory that a server may use, by its control groups and the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.runtime.system.memory_limit import MemoryUse, memory_limit

MACHINE = {"proc/meminfo": "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:  400 kB\n"}
OF_MACHINE = MemoryUse(600 * 1024, 1000 * 1024, 100 * 1024)
V2 = {
    "proc/self/cgroup": "0::/pod/container\n",
    "sys/fs/cgroup/pod/container/memory.max": "max\n",
    "sys/fs/cgroup/pod/container/memory.current": "300000\n",
    "sys/fs/cgroup/pod/memory.max": "500000\n",
    "sys/fs/cgroup/pod/memory.current": "400000\n",
    "sys/fs/cgroup/pod/memory.stat": "anon 250000\nfile 150000\ninactive_file 100000\n",
    "sys/fs/cgroup/memory.max": "900000\n",
    "sys/fs/cgroup/memory.current": "800000\n",
}
LIMIT = "sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes"
V1 = {
    "proc/self/cgroup": "4:memory:/docker/a\n2:cpu:/elsewhere\n",
    LIMIT: "700000\n",
    "sys/fs/cgroup/memory/docker/a/memory.usage_in_bytes": "600000\n",
    "sys/fs/cgroup/memory/docker/a/memory.stat": "inactive_file 1\ntotal_inactive_file 50000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "600000\n",
}


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({}, None),
        (MACHINE, OF_MACHINE),
        (V2, MemoryUse(300_000, 500_000, 100_000)),
        (V1, MemoryUse(550_000, 700_000, 100_000)),
        ({**MACHINE, **V2}, MemoryUse(300_000, 500_000, 100_000)),
        # Version 1 writes "no limit" as a number that no machine has.
        ({**MACHINE, **V1, LIMIT: "9223372036854771712\n"}, OF_MACHINE),
        ({**MACHINE, "proc/self/cgroup": "0::/../gone\n"}, OF_MACHINE),
        (
            {**MACHINE, **V2, "sys/fs/cgroup/pod/memory.stat": "garbage"},
            MemoryUse(400_000, 500_000, 100_000),
        ),
    ],
)
def test_the_smallest_limit_counts_with_what_shares_it(
    tmp_path: Path, files: dict[str, str], memory: MemoryUse | None
) -> None:
    assert memory_limit(lay_out(tmp_path, files)) == memory


def test_this_machine_has_memory_of_which_some_is_in_use() -> None:
    memory = memory_limit()
    assert memory is not None
    assert memory.used > 0
    assert memory.limit > 0
