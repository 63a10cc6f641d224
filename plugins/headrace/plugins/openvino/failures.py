"""What OpenVINO's errors mean.

All of them are RuntimeErrors, so they are told apart by the stage they come from. Messages lose
their code locations and failed C++ conditions.
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
_NUMBERED: Final = re.compile(r"\b([A-Z][A-Za-z]+)_\d+\b")
_NO_MEMORY: Final = re.compile(r"bad_alloc|(?:[Cc]ould not|[Ff]ailed to) allocate|[Oo]ut of memory")
_LENGTH: Final = 600


def load_failure(error: Exception) -> HeadraceError:
    """What to raise for an error that converting, compiling or importing a network raised.

    ResourceExhausted: no memory. InvalidModel: anything else, for OpenVINO tells no difference
    between a model that is wrong and one that it lacks the operators for.
    """
    text = readable(error)
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return ResourceExhausted(f"no memory for the network: {text}")
    return InvalidModel(REFUSED + text, field="model")


def run_failure(error: Exception) -> Exception:
    """What to raise for an error that a run raised.

    InvalidArgument: a layer does not take the values it got. ResourceExhausted: no memory. The
    error itself: what is no error of OpenVINO's.
    """
    if isinstance(error, HeadraceError):
        return error
    text = _VALIDATING.sub(r"layer \1:", readable(error))
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return ResourceExhausted(f"no memory for the request: {text}")
    if isinstance(error, RuntimeError):
        return InvalidArgument(f"the network does not take these values: {text}", field="inputs")
    return error


def why_not(error: HeadraceError) -> str:
    """What a load failure says against a layer: the same each time, so without the numbers that
    OpenVINO gives to operations, and without the names that a layer on trial has."""
    return _NUMBERED.sub(r"\1", error.message.removeprefix(REFUSED))


def readable(error: Exception) -> str:
    """The error's text on one line, without code locations."""
    text = str(error)
    for pattern in (_LOCATION, _CONDITION, _NOISE):
        text = pattern.sub(" ", text)
    text = " ".join(text.split()).strip(" .:")
    return text[:_LENGTH] or type(error).__name__
