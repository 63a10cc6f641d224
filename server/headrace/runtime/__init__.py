"""Devices, networks, requests and executors. Imports no gRPC.

A plugin's author imports `headrace.sdk`: modules of this package move and change.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

from headrace.runtime.system.garbage import without_looks
from headrace.runtime.system.late_imports import import_without


class _MissingModules(MetaPathFinder):
    """Answers imports of modules that the runtime no longer has, as plugins for earlier versions
    make them, with an error that tells where the names are now. Asked after all other finders."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> None:
        if fullname.startswith(f"{__name__}."):
            # Without `name`: an import of a missing name from a package would drop the message.
            raise ModuleNotFoundError(
                f"headrace has no {fullname}; a plugin imports all it needs from headrace.sdk, "
                "where the base class of a device is CompiledPlugin"
            )


sys.meta_path.append(_MissingModules())

# The second module needs the first one when it is imported.
with without_looks():
    import_without("onnx_ir", "sympy", "onnx_ir._symbolic_shapes")
