"""OpenVINO itself, imported without what reports on it.

Importing the package makes a thread that tells its makers of the import, over the network, and
keeps running. It does without where its telemetry package cannot be imported, and so that is how it
is imported here, by everything in this folder.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

_TELEMETRY: Final = "openvino_telemetry"


def _imported(name: str) -> ModuleType:
    if name.partition(".")[0] in sys.modules:
        return importlib.import_module(name)
    kept = sys.modules.get(_TELEMETRY)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # what an import refuses by
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


def change_readers(
    output: openvino.Output, make: Callable[[openvino.Output], openvino.Node]
) -> None:
    """Gives the readers of `output` what is made of it."""
    readers, names = output.get_target_inputs(), output.get_names()
    made = make(output).output(0)
    output.set_names(set())
    made.set_names(names)
    for reader in readers:
        reader.replace_source_output(made)
