"""The environment variables for tinygrad and the OpenCL driver, and the folder of their kernels.

They compile a kernel once and keep it on disk. tinygrad unpickles the files, so other users must
not be able to write to the folder. The folder belongs to the server or to the user.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from headrace.plugins.opencl.backend.kernel_folder import KERNELS, POCL

_TINYGRAD: Final = {
    "DEV": "CL",
    "DEBUG": "0",
    "BEAM": "0",  # measures kernels against each other for minutes
    "TRACEMETA": "0",
    "PARALLEL": "0",  # forks processes that compile, and a process with threads cannot fork
    "LRU": "0",  # keeps every freed buffer, in case its size is needed again
}


def kernel_folder(environ: Mapping[str, str], state: Path | None, owner: int) -> Path:
    """The folder in which kernels are kept.

    Args:
        environ: the environment of this process.
        state: the device's folder in the server's state directory, if it has one.
        owner: the user id of this process.

    Raises:
        RuntimeError: no folder can be used.
    """
    home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "/") / ".cache")
    last = Path(tempfile.gettempdir()) / f"headrace-{owner}-opencl"
    folders = [home / "headrace" / "opencl", last]
    return private_folder(folders if state is None else [state, *folders], owner)


def settings(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment variables to set before tinygrad is imported.

    Args:
        environ: the environment of this process. If it has CACHEDB or POCL_CACHE_DIR, they stay.
        folder: the folder of kernels.
    """
    kept = {"CACHEDB": str(folder / KERNELS), "POCL_CACHE_DIR": str(folder / POCL)}
    return {**_TINYGRAD, **{name: environ.get(name) or path for name, path in kept.items()}}


def private_folder(candidates: Iterable[Path], owner: int) -> Path:
    """The first of the folders that exists or can be made and that no other user can write to.

    Raises:
        RuntimeError: there is no such folder.
    """
    tried = []
    for folder in candidates:
        tried.append(str(folder))
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.lstat()
            if facts.st_uid != owner or facts.st_mode & 0o022 or folder.is_symlink():
                continue
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    raise RuntimeError(f"compiled kernels cannot be kept in any of {', '.join(tried)}")
