"""Imports OpenVINO without its telemetry.

When the package is imported, it starts a thread that reports the import to its makers over the
network. The thread keeps running. The package does not start the thread if it cannot import its
telemetry package. So this module blocks that package while it imports OpenVINO. Everything in this
folder imports OpenVINO from here.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Final

_TELEMETRY: Final = "openvino_telemetry"


def _imported(name: str) -> ModuleType:
    if name.partition(".")[0] in sys.modules:
        return importlib.import_module(name)
    kept = sys.modules.get(_TELEMETRY)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # makes its import fail
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules[_TELEMETRY]
        if kept is not None:
            sys.modules[_TELEMETRY] = kept


openvino: Final[Any] = _imported("openvino")
operations: Final[Any] = _imported("openvino.opset14")
FrontEndManager: Final[Any] = _imported("openvino.frontend").FrontEndManager
ConversionExtension: Final[Any] = _imported("openvino.frontend.onnx").ConversionExtension
replace_node: Final[Any] = _imported("openvino.utils").replace_node
