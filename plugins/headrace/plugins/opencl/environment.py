"""What tinygrad and the OpenCL driver read from the environment, and the folder of their kernels.

They compile a kernel once and keep it on disk. What tinygrad keeps it unpickles, so the folder is
one that nobody else can write to: the server's own, or the user's.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

MAX_KERNEL_BYTES: Final = 2 << 30
"""A folder that holds more is emptied when the device starts."""

_TINYGRAD: Final = {
    "DEV": "CL",
    "DEBUG": "0",
    "BEAM": "0",  # measures kernels against each other for minutes
    "TRACEMETA": "0",
    "PARALLEL": "0",  # processes that compile, which a process of threads cannot fork
    "LRU": "0",  # keeps every buffer that was ever freed, in case that its size comes again
}


def settings(environ: Mapping[str, str], state: Path | None, owner: int) -> dict[str, str]:
    """What to set in the environment before tinygrad is imported.

    Args:
        environ: as it is; CACHEDB and POCL_CACHE_DIR stay as they are there.
        state: the device's folder in the server's state directory, if it has one.
        owner: user id of this process.
    """
    home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "/") / ".cache")
    last = Path(tempfile.gettempdir()) / f"headrace-{owner}-opencl"
    folders = [home / "headrace" / "opencl", last]
    folder = private_folder(folders if state is None else [state, *folders], owner)
    kept = {"CACHEDB": str(folder / "kernels.db"), "POCL_CACHE_DIR": str(folder / "pocl")}
    return {**_TINYGRAD, **{name: environ.get(name) or path for name, path in kept.items()}}


def trials_file(environ: Mapping[str, str]) -> Path:
    """Where the answers of trials are kept: beside the kernels, as `settings` has them."""
    return Path(environ["CACHEDB"]).with_name("trials.db")


def private_folder(candidates: Iterable[Path], owner: int) -> Path:
    """The first of the folders that can be made, or is there, and that nobody else can write to.

    Raises:
        RuntimeError: there is none.
    """
    tried = []
    for folder in candidates:
        tried.append(str(folder))
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.lstat()
            if facts.st_uid != owner or facts.st_mode & 0o022 or folder.is_symlink():
                continue
            if _bytes(folder) > MAX_KERNEL_BYTES:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    raise RuntimeError(f"compiled kernels can be kept in none of {', '.join(tried)}")


def _bytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
