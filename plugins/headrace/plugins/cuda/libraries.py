"""Finds the libraries that a provider of ONNX Runtime needs, and says which are missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from io import StringIO
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

_NAME: Final = re.compile(r"(lib[A-Za-z]+)")
_MEANINGS: Final = MappingProxyType(
    {
        "libcudart": "the CUDA runtime",
        "libcublas": "cuBLAS",
        "libcublasLt": "cuBLAS",
        "libcurand": "cuRAND",
        "libcufft": "cuFFT",
        "libnvrtc": "CUDA's runtime compiler",
        "libcudnn": "cuDNN",
        "libnvinfer": "TensorRT",
        "libnvonnxparser": "TensorRT's reader of ONNX",
    }
)
_REMEDY: Final = "pip install 'onnxruntime-gpu[cuda,cudnn]', or add its folder to LD_LIBRARY_PATH"
_TENSORRT_REMEDY: Final = "install TensorRT, and add its folder to LD_LIBRARY_PATH"
_DRIVER: Final = (
    "the driver's own library is missing (libcuda.so.1); a container gets it with --gpus all"
)
CUDNN: Final = "libcudnn.so.9"
"""No library names it. The provider loads it when a network needs it, which is too late."""

Load = Callable[[str], Any]
"""Loads a library by its name, or raises OSError, like `ctypes.CDLL`."""


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
        tags = [each.iter_tags() for each in sections if isinstance(each, DynamicSection)]
        names = [getattr(tag, "needed", "") for tag in chain.from_iterable(tags)]
    return [name for name in names if name]


def lacking(names: Iterable[str], load: Load) -> str:
    """Names the first library that cannot be loaded, and what to do. Empty if all can be loaded."""
    for name in names:
        try:
            load(name)
        except OSError as error:
            return explained(name, str(error))
    return ""


def explained(name: str, error: str) -> str:
    """Explains why a library cannot be loaded.

    Args:
        name: the library's name.
        error: the loader's message. It may name another library that this one needs.
    """
    if "cannot open shared object file" not in error:
        return f"{name} cannot be loaded: {error}"
    missing = error.partition(":")[0] or name
    found = _NAME.match(missing)
    kind = found[1] if found is not None else missing
    if kind == "libcuda":
        return _DRIVER
    remedy = _TENSORRT_REMEDY if kind.startswith("libnv") and kind != "libnvrtc" else _REMEDY
    return f"{_MEANINGS.get(kind, 'a library')} is missing ({missing}); {remedy}"


def preload(library: Any) -> None:
    """Makes ONNX Runtime, whose module is `library`, load the libraries among Python's packages.
    Hides its prints of missing libraries, because `lacking` reports them better."""
    with redirect_stdout(StringIO()):
        library.preload_dlls(directory="")
