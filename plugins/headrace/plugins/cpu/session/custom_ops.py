"""Native libraries of custom operators. They are code, so the server's configuration names them.

A library exports ``RegisterCustomOps``, as that of the package onnxruntime-extensions does. It
stays in the process: for each session it registers anew, which takes 40 µs.
"""

from __future__ import annotations

import logging
import re
from pathlib import PurePosixPath
from typing import Any, Final

from headrace.plugins.cpu import failures
from headrace.runtime.config.key import Key, config_field
from headrace.runtime.config.schema import Configuration
from headrace.runtime.errors import FailedPrecondition

_log = logging.getLogger(__name__)

CUSTOM_OPS_LIBRARIES: Final = Key(
    "CUSTOM_OPS_LIBRARIES",
    str,
    "",
    "Native libraries of custom operators, which export RegisterCustomOps.",
    scope="server",
    paths=True,
)

_FOLDERS: Final = re.compile(r"(?<![\w.])/(?:[^\s/:]+/)*")


def libraries(config: Configuration) -> tuple[str, ...]:
    """Absolute paths of the libraries, in the order in which they are given."""
    return tuple(filter(None, config.get(CUSTOM_OPS_LIBRARIES).split(":")))


def register(options: Any, library: str) -> None:
    """Gives the options of a session the operators of a library.

    Raises:
        FailedPrecondition: it is missing or is no such library; with its name, not its folder, for
            clients hear of it.
    """
    try:
        options.register_custom_ops_library(library)
    except Exception as error:
        _log.error("the custom operators' library %s cannot be used: %s", library, error)
        folder, name = PurePosixPath(library).parent, PurePosixPath(library).name
        why = _FOLDERS.sub("", failures.readable(error).replace(f"{folder}/", ""))
        raise FailedPrecondition(
            f"{name}, one of {CUSTOM_OPS_LIBRARIES.name}, cannot be used: {why}",
            field=config_field(CUSTOM_OPS_LIBRARIES.name),
        ) from error
