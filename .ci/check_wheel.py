"""Given a wheel: each of its packages says that it is typed, and nothing else came along."""

from __future__ import annotations

import sys
import zipfile
from pathlib import PurePosixPath


def package_of(file: PurePosixPath) -> PurePosixPath:
    """The package below the namespace, ``headrace`` or ``headrace.plugins``, that a file is in."""
    parts = 3 if file.parts[1] == "plugins" else 2
    return PurePosixPath(*file.parts[:parts])


def main(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = [PurePosixPath(name) for name in archive.namelist()]
    ours = [each for each in files if each.parts[0] == "headrace"]
    others = {each.parts[0] for each in files} - {"headrace"}
    if not all(each.endswith(".dist-info") for each in others):
        sys.exit(f"the wheel holds more than headrace: {sorted(others)}")
    packages = {package_of(each) for each in ours}
    untyped = sorted(str(each) for each in packages if each / "py.typed" not in ours)
    if untyped:
        sys.exit(f"the wheel lacks py.typed in {', '.join(untyped)}")
    print(f"the wheel holds {len(packages)} typed packages")


main(*sys.argv[1:])
