"""Why a guard fails, as the name of its layer tells."""

from __future__ import annotations

from typing import Final

SUFFIX: Final = "/headrace.guard"  # in the names of layers that fail in place of another
FAILS: Final = "an input is empty, has too few axes, or gives a length of 0"
MOST_TEXTS: Final = 524_288  # of an output
_REASONS: Final = {
    "class": "a class is negative, and it is not ignore_index",
    "corner": "with align_corners, each axis of the grid must have at least two pixels",
    "count": f"an output has more than {MOST_TEXTS:,} strings, the most for one output; "
    "ask for fewer in one request",
    "crop": "an axis keeps its size, and the backend then does not crop it",
    "many": "it has too many rows; send fewer in one request",
    "negative": "a length is negative",
    "range": "it has more elements than there are floats of 16 bits",
    "rotary": "a head does not have the number of elements that the cosines turn",
    "shape": "the shapes of the inputs do not fit each other",
    "text": "a string has white space that the backend splits differently from ONNX",
    "window": "the window is larger than the padded input",
}


def reason(rest: str) -> str:
    """Why a layer fails, as told by the part of its name after `SUFFIX`."""
    kind = rest.removeprefix(".").partition("#")[0]
    return _REASONS.get(kind, FAILS)
