"""Turns OpenVINO's errors into headrace's errors.

OpenVINO's errors say little by their types, so the stage that raised an error tells its meaning.
Code locations and failed C++ conditions are removed from the messages.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.runtime.errors import (
    HeadraceError,
    InvalidArgument,
    InvalidModel,
    ResourceExhausted,
)

NATIVE: Final = (RuntimeError, ValueError, IndexError, OverflowError)
"""The errors that C++ exceptions become in Python: std::invalid_argument is a ValueError."""
REFUSED: Final = "OpenVINO does not take the model: "
_LOCATION: Final = re.compile(r"Exception from \S+:\d+:")
_CONDITION: Final = re.compile(r"Check '.*?' failed at \S+:\d+:?", re.DOTALL)
_NOISE: Final = re.compile(
    r"FrontEnd API failed with \w+:|Model wasn't fully converted\.|Summary:|-- |"
    r"To facilitate the conversion of unsupported operations,.*$|"
    r"Failed operations detailed log:",
    re.DOTALL,
)
_VALIDATING: Final = re.compile(
    r"While validating node '.*?' with friendly_name ('.*?'):", re.DOTALL
)
_NO_MEMORY: Final = re.compile(r"bad_alloc|(?:[Cc]ould not|[Ff]ailed to) allocate|[Oo]ut of memory")
_LENGTH: Final = 600


def load_failure(error: Exception) -> HeadraceError:
    """The error to raise for an error that converting, compiling or importing a network raised.

    ResourceExhausted: there is no memory. InvalidModel: all other errors, because OpenVINO does not
    distinguish a wrong model from a model whose operators it lacks.
    """
    text = readable(error)
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return ResourceExhausted(f"no memory for the network: {text}")
    return InvalidModel(REFUSED + text, field="model")


def run_failure(error: Exception) -> Exception:
    """The error to raise for an error that a run raised.

    InvalidArgument: a layer does not take the values that it got. ResourceExhausted: there is no
    memory. The error itself: the error is not OpenVINO's.
    """
    if isinstance(error, HeadraceError):
        return error
    text = _VALIDATING.sub(r"layer \1:", readable(error))
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return ResourceExhausted(f"no memory for the request: {text}")
    if isinstance(error, NATIVE):
        return InvalidArgument(f"the network does not take these values: {text}", field="inputs")
    return error


def readable(error: Exception) -> str:
    """The error's text on one line, without code locations."""
    text = str(error)
    for pattern in (_LOCATION, _CONDITION, _NOISE):
        text = pattern.sub(" ", text)
    text = " ".join(text.split()).strip(" .:")
    return text[:_LENGTH] or type(error).__name__
