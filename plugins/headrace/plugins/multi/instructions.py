"""What a schedule is told of and what it answers: requests and instructions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from headrace.plugins.multi.station import Station
from headrace.runtime.execution.fair_queue import Entry

T = TypeVar("T")


class Request(Generic[T]):
    """A request from its arrival to its answer.

    Attributes:
        item: whatever the owner of the schedule keeps with it.
        station: where it runs; None while it waits, and at the end.
        error: of the device that failed it; None while it runs for the first time.
    """

    __slots__ = ("entry", "error", "failed_on", "item", "priority", "spell", "station", "stranded")

    def __init__(self, item: T, priority: int = 0) -> None:
        self.item = item
        self.priority = priority
        self.entry: Entry[Request[T]] | None = None
        self.station: Station | None = None
        self.spell = 0
        self.error: BaseException | None = None
        self.failed_on: Failure | None = None
        self.stranded = math.inf  # since when no device is left to run it again


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a request failed, and in which spell if that may have been the device's fault."""

    station: Station
    suspected: int | None


@dataclass(frozen=True, slots=True)
class Run(Generic[T]):
    """Have the device run the request; tell `completed` or `failed`."""

    request: Request[T]
    device: str


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """Answer the request: with what the device gave if there is no error."""

    request: Request[T]
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """Say that a device was taken out, for this reason, or put back if there is none."""

    device: str
    reason: str = ""


Instruction: TypeAlias = Run[T] | Answer[T] | Told
