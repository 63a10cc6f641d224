"""Native libraries of custom operators. They are code, so only the server's configuration can name
them.

A library exports ``RegisterCustomOps``, like the library of the package onnxruntime-extensions. It
stays in the process, and is registered again for each session, which takes 40 µs.
"""

from __future__ import annotations

import logging
import re
from pathlib import PurePosixPath
from typing import Any, Final

from headrace.plugins.cpu.backend import failures
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
    """Absolute paths of the libraries, in the order of the configuration."""
    return tuple(filter(None, config.get(CUSTOM_OPS_LIBRARIES).split(":")))


def register(options: Any, library: str) -> None:
    """Adds the operators of a library to the options of a session.

    Raises:
        FailedPrecondition: the library is missing, or has no custom operators. The message has its
            name but not its folder, because clients see the message.
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
