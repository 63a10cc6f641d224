"""What tinygrad and the OpenCL driver read from the environment, and the folder of their kernels.

They compile a kernel once and keep it on disk. tinygrad unpickles what it keeps, so other users
must not be able to write to the folder: the server's own, or the user's.
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
    "PARALLEL": "0",  # processes that compile, which a process of threads cannot fork
    "LRU": "0",  # keeps every buffer that was ever freed, in case that its size comes again
}


def kernel_folder(environ: Mapping[str, str], state: Path | None, owner: int) -> Path:
    """Where kernels are kept.

    Args:
        environ: as it is.
        state: the device's folder in the server's state directory, if it has one.
        owner: user id of this process.

    Raises:
        RuntimeError: nowhere.
    """
    home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "/") / ".cache")
    last = Path(tempfile.gettempdir()) / f"headrace-{owner}-opencl"
    folders = [home / "headrace" / "opencl", last]
    return private_folder(folders if state is None else [state, *folders], owner)


def settings(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What to set in the environment before tinygrad is imported.

    Args:
        environ: as it is; CACHEDB and POCL_CACHE_DIR stay as they are there.
        folder: of kernels.
    """
    kept = {"CACHEDB": str(folder / KERNELS), "POCL_CACHE_DIR": str(folder / POCL)}
    return {**_TINYGRAD, **{name: environ.get(name) or path for name, path in kept.items()}}


def trials_file(environ: Mapping[str, str]) -> Path:
    """Where the answers of trials are kept: beside the kernels, as `settings` has them."""
    return Path(environ["CACHEDB"]).with_name("trials.db")


def private_folder(candidates: Iterable[Path], owner: int) -> Path:
    """The first of the folders that exists or can be made and that no other user can write to.

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
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    raise RuntimeError(f"compiled kernels cannot be kept in any of {', '.join(tried)}")
