"""Finds the GPUs of a machine. If CUDA cannot work there, says what to fix first."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from headrace.plugins.cuda import libraries
from headrace.plugins.cuda.gpu import Gpu, visible
from headrace.plugins.cuda.memory import HostMemory, PinnedMemory
from headrace.plugins.cuda.nvml import Management, Nvml
from headrace.runtime.errors import Unavailable

PROVIDER: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
_PACKAGES: Final = ("onnxruntime", "onnxruntime-gpu")
_OLD_DRIVER: Final = 35  # cudaErrorInsufficientDriver
_ERROR: Final = 3  # ONNX Runtime's log level


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
    management: Management
    tensorrt: Callable[[], str]
    pinned: Callable[[int], HostMemory]


def look(
    management: Callable[[], Management],
    providers: Callable[[], Sequence[str]],
    packages: Collection[str],
    lacking: Callable[[], str],
    setting: str | None,
) -> tuple[dict[str, Gpu], Management]:
    """The GPUs, and the management library that reports on them.

    Args:
        management: starts NVML; raises Unavailable.
        providers: lists the providers in ONNX Runtime's build; raises ImportError without it.
        packages: the installed packages that bring ONNX Runtime.
        lacking: says which library the provider lacks; empty if none.
        setting: CUDA_VISIBLE_DEVICES.

    Raises:
        Unavailable: something is missing; names the first missing thing.
    """
    nvml = management()
    try:
        found = nvml.gpus()
        if not found:
            raise Unavailable("the NVIDIA driver finds no GPU on this machine")
        shown = visible(found, setting, nvml.find)
        if not shown:
            raise Unavailable(f"CUDA_VISIBLE_DEVICES={setting} shows none of {len(found)} GPUs")
        try:
            built_with = providers()
        except ImportError as error:
            raise Unavailable(f"ONNX Runtime cannot be imported: {error}") from error
        if PROVIDER not in built_with:
            raise Unavailable(without_provider(packages))
        missing = lacking()
        if missing:
            raise Unavailable(missing)
    except BaseException:
        nvml.close()
        raise
    return {str(place): gpu for place, gpu in enumerate(shown)}, nvml


def without_provider(packages: Collection[str]) -> str:
    """Why ONNX Runtime has no CUDA provider, given its installed packages. Two packages own the
    same files, and the package that was installed last overwrites the other's."""
    mend = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
    if {*_PACKAGES} <= {*packages}:
        return (
            f"onnxruntime, which is for processors, was installed over onnxruntime-gpu; "
            f"install only the latter: {mend}"
        )
    if "onnxruntime" in packages:
        return (
            f"the installed onnxruntime is for processors, and onnxruntime-gpu is for both; "
            f"replace it: {mend}"
        )
    return "the installed ONNX Runtime was built without its CUDA provider"


def this_machine() -> Machine:
    """The machine that this process runs on.

    Raises:
        Unavailable: CUDA cannot work here.
    """
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus, nvml = look(Nvml, _providers, _installed(), partial(_lacking, "cuda"), setting)
    try:
        runtime = _runtime(_needed("cuda"))
        count = shown_by(runtime)
    except BaseException:
        nvml.close()
        raise
    _quieten()
    gpus = dict(islice(gpus.items(), count))
    return Machine(gpus, nvml, partial(_lacking, "tensorrt"), partial(PinnedMemory, runtime))


def _runtime(libraries: Iterable[str]) -> ctypes.CDLL:
    """Loads CUDA's runtime library, which is one of the libraries that the provider needs.

    Raises:
        Unavailable: it is not among them, or cannot be loaded.
    """
    for name in libraries:
        if name.startswith("libcudart"):
            try:
                return ctypes.CDLL(name)
            except OSError as error:
                raise Unavailable(f"CUDA's runtime cannot be loaded: {error}") from error
    raise Unavailable("this ONNX Runtime needs no CUDA runtime of its own, which pins memory here")


def shown_by(runtime: Any) -> int:
    """How many GPUs CUDA itself finds. If the driver reports more, CUDA's number counts.

    Args:
        runtime: CUDA's runtime library.

    Raises:
        Unavailable: CUDA finds no GPU, or does not start, for example on a driver older than CUDA.
    """
    found = ctypes.c_int()
    code = runtime.cudaGetDeviceCount(ctypes.byref(found))
    if code == _OLD_DRIVER:
        driver, needs = map(_version, (runtime.cudaDriverGetVersion, runtime.cudaRuntimeGetVersion))
        raise Unavailable(
            f"the NVIDIA driver is for CUDA {driver}, and this ONNX Runtime needs {needs}; install "
            f"a newer driver"
        )
    if code:
        described = runtime.cudaGetErrorString
        described.restype = ctypes.c_char_p
        raise Unavailable(f"CUDA does not start: {described(code).decode()} (CUDA error {code})")
    return found.value


def _version(ask: Callable[[Any], int]) -> str:
    found = ctypes.c_int()
    ask(ctypes.byref(found))
    return f"{found.value // 1000}.{found.value % 1000 // 10}"


def _quieten() -> None:
    """Silences a warning that ONNX Runtime logs for each session: that its CUDA provider is not of
    the newer kind. A session's own options come too late to silence it."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(_ERROR)


def _providers() -> Sequence[str]:
    import onnxruntime

    found: Sequence[str] = onnxruntime.get_available_providers()
    return found


def _installed() -> list[str]:
    def is_there(package: str) -> bool:
        try:
            return bool(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            return False

    return [package for package in _PACKAGES if is_there(package)]


def _needed(provider: str) -> list[str]:
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent / "capi"
    needed = libraries.needed(folder / f"libonnxruntime_providers_{provider}.so")
    return [*needed, libraries.CUDNN]


def _lacking(provider: str) -> str:
    import onnxruntime

    libraries.preload(onnxruntime)
    return libraries.lacking(_needed(provider), ctypes.CDLL)
