"""The control groups that limit this process, of version 1 and version 2.

For the file formats, see cgroups(7), and Documentation/admin-guide/cgroup-v2.rst of Linux.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the control groups that limit this process, each with all of its parents.

    Args:
        root: where /proc and /sys are.
        controller: of version 1, such as ``cpu``. Version 2 has one hierarchy for all.
    """
    mounts = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        # "" is version 2, which may be in "unified" next to version 1.
        if controllers == "":
            hierarchies = [mounts, mounts / "unified"]
        elif controller in controllers.split(","):
            hierarchies = [mounts / controllers, mounts / controller]
        else:
            continue
        # Inside a namespace, a path may start with ".." ("/../x"), or name a folder that is not
        # mounted here. Only the folders that exist count.
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for hierarchy in hierarchies:
            for depth in range(len(parts), -1, -1):
                yield hierarchy.joinpath(*parts[:depth])


def read(file: Path) -> str:
    """What the file says; empty if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
