"""The answer of a device, or of the reference, to a variant. Answers travel between processes."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_BYTES = 16 << 20
TWO_ANSWERS = "two answers"


class Stage(enum.Enum):
    START = "start"
    QUERY = "query"
    LOAD = "load"
    RUN = "run"


class How(enum.Enum):
    """How a network or a request ended."""

    ANSWERED = "answered"
    REFUSED = "refused"  # the caller is at fault, or the device lacks what it needs
    NO_MEMORY = "no memory"
    BROKEN = "broken"  # an error that a server would report as INTERNAL
    ENDED = "process ended"
    HUNG = "hung"
    UNABLE = "not implemented"  # by the reference, which is no opinion on the request


@dataclass(frozen=True, slots=True)
class Large:
    """Stands for an output that is too large to be compared element by element."""

    shape: tuple[int, ...]
    dtype: str
    digest: str

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> Large:
        digest = hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data).hexdigest()
        return cls(array.shape, array.dtype.name, digest)


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """The result of one request.

    Attributes:
        outputs: by name, if it was answered.
        text: of the error, if it was not.
        foreign: the evidence that memory outside the request was read or written; empty if there
            is none.
        unsteady: how the same request ended the second time; empty if it ended in the same way.
    """

    how: How
    outputs: Mapping[str, Any] | None = None
    text: str = ""
    foreign: str = ""
    unsteady: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The result of a variant.

    Attributes:
        how: ANSWERED if the network was loaded; each of `replies` then says more.
        stage: the last that was begun.
        claimed: a query said that all layers are supported.
        text: of the error, if there was one.
    """

    how: How
    stage: Stage
    claimed: bool = False
    text: str = ""
    replies: tuple[Reply, ...] = ()


def portable(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs, with a `Large` in the place of each large array."""
    return {
        name: Large.of(value)
        if isinstance(value, np.ndarray) and value.dtype != object and value.nbytes > MOST_BYTES
        else value
        for name, value in outputs.items()
    }
