"""Finds out whether CUDA works on a machine, by a session. Only if it fails, says what to mend."""

from __future__ import annotations

import ctypes
import importlib.metadata
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, Final

from headrace.plugins.cuda.backend.gpu import Gpu, gpus
from headrace.plugins.cuda.backend.memory import PinnedMemory
from headrace.plugins.cuda.backend.nvml import Nvml
from headrace.runtime.errors import HeadraceError, NotInstalled, Unavailable

PROVIDER: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
DRIVER: Final = Path("/proc/driver/nvidia/version")
"""This file exists while the driver is loaded."""
_PACKAGES: Final = ("onnxruntime", "onnxruntime-gpu")
_MEND: Final = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
_CUDNN: Final = "libcudnn.so.9"
"""No library names it. The provider loads it when a network needs it, which is too late."""
_LIBRARIES: Final = (
    "pip install 'onnxruntime-gpu[cuda,cudnn]', or add its folder to LD_LIBRARY_PATH"
)
_ERROR: Final = 3  # ONNX Runtime's log level

Library = Callable[[str], Any]
"""Loads a library by its name, or raises OSError, like `ctypes.CDLL`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine on which CUDA works.

    Attributes:
        gpus: the GPUs by CUDA's id, from "0".
        management: reports the GPUs' memory.
        tensorrt: says why TensorRT's provider cannot be used; empty if it can.
        pinned: takes CUDA's number of a GPU, and gives the pinned memory for its copies.
    """

    gpus: dict[str, Gpu]
    management: Nvml
    tensorrt: Callable[[], str]
    pinned: Callable[[int], PinnedMemory]


def this_machine(open_session: Callable[[], object]) -> Machine:
    """The machine that this process runs on.

    Args:
        open_session: opens a session on the first GPU. Raises a HeadraceError if it cannot.

    Raises:
        NotInstalled: there is neither ONNX Runtime for GPUs nor NVIDIA's driver.
        Unavailable: CUDA cannot work here. Says what to mend.
    """
    import onnxruntime

    if PROVIDER not in onnxruntime.get_available_providers():
        raise absent(without_provider(_installed()))
    cards = gpus(_loaded("libcuda.so.1", "install NVIDIA's driver, or start with --gpus all"))
    with redirect_stdout(StringIO()):  # it prints what is missing, which is told better below
        onnxruntime.preload_dlls(directory="")
    # A session's own options come too late to silence a warning for each session: that the CUDA
    # provider is not of the newer kind.
    onnxruntime.set_default_logger_severity(_ERROR)
    folder = Path(onnxruntime.__file__).parent / "capi"
    provider = folder / "libonnxruntime_providers_cuda.so"
    try:
        open_session()
    except HeadraceError as error:
        raise Unavailable(lacking(needed(provider), _LIBRARIES) or error.message) from error
    if missing := lacking([_CUDNN], _LIBRARIES):
        raise Unavailable(missing)
    named = (name for name in needed(provider) if name.startswith("libcudart"))
    runtime = next(named, "libcudart.so")
    return Machine(
        {str(number): gpu for number, gpu in enumerate(cards)},
        Nvml(),
        partial(_without_tensorrt, folder / "libonnxruntime_providers_tensorrt.so"),
        partial(PinnedMemory, _loaded(runtime, _LIBRARIES)),
    )


def absent(why: str) -> HeadraceError:
    """The error if ONNX Runtime for GPUs is not installed. A loaded driver means that there is a
    GPU. Then somebody may expect the server to use it."""
    return Unavailable(why) if DRIVER.exists() else NotInstalled(why)


def without_provider(packages: Collection[str]) -> str:
    """Why ONNX Runtime has no CUDA provider, given its installed packages. Two packages own the
    same files, and the package that was installed last overwrites the other's."""
    if {*_PACKAGES} <= {*packages}:
        return (
            f"onnxruntime, which is for processors, was installed over onnxruntime-gpu; "
            f"install only the latter: {_MEND}"
        )
    if "onnxruntime" in packages:
        return (
            f"the installed onnxruntime is for processors, and onnxruntime-gpu is for both; "
            f"replace it: {_MEND}"
        )
    return "the installed ONNX Runtime was built without its CUDA provider"


def needed(path: Path) -> list[str]:
    """The names of the libraries that a library needs, in order. They are read from its file,
    because loading it has side effects, and only ONNX Runtime may load its providers.

    Raises:
        elftools.common.exceptions.ELFError: the file is not a library.
        OSError: it cannot be read.
    """
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file:
        sections = ELFFile(file).iter_sections()
        tags = [section.iter_tags() for section in sections if isinstance(section, DynamicSection)]
        names = [getattr(tag, "needed", "") for tag in chain.from_iterable(tags)]
    return [name for name in names if name]


def lacking(names: Iterable[str], remedy: str, load: Library = ctypes.CDLL) -> str:
    """Names the first library that cannot be loaded, and what to do. Empty if all can be loaded."""
    for name in names:
        try:
            load(name)
        except OSError as error:
            return f"a library cannot be loaded: {error}; {remedy}"
    return ""


def _loaded(name: str, remedy: str) -> ctypes.CDLL:
    if missing := lacking([name], remedy):
        raise Unavailable(missing)
    return ctypes.CDLL(name)


def _without_tensorrt(provider: Path) -> str:
    try:
        names = needed(provider)
    except OSError as error:
        return str(error)
    return lacking(names, "install TensorRT, and add its folder to LD_LIBRARY_PATH")


def _installed() -> Sequence[str]:
    def is_there(package: str) -> bool:
        try:
            return bool(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            return False

    return [package for package in _PACKAGES if is_there(package)]
