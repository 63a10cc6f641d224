"""WEBGPU on processors: the provider's package, and SwiftShader as its driver of Vulkan."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGE: Final = "onnxruntime_ep_webgpu"
_FOLDER: Final = Path(__file__).parents[2] / ".cache/swiftshader"

ENVIRONMENT: Final = {
    "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1",
    "VK_ICD_FILENAMES": str(_FOLDER / "vk_swiftshader_icd.json"),
    "LD_LIBRARY_PATH": str(_FOLDER),
}
"""Of the process in which the provider runs, from its start."""


def lacking() -> str:
    """What the tests of WEBGPU need and is not there; empty if all is."""
    if find_spec(PACKAGE) is None:
        return "onnxruntime-ep-webgpu is not installed; it is in the extra 'webgpu'"
    return "" if _FOLDER.exists() else "SwiftShader is not there; run make .cache/swiftshader"
