"""What became of one network of the repository, and why."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from headrace.runtime.errors import AlreadyExists, Cancelled, ResourceExhausted, Unavailable
from headrace.runtime.loading.registry import NetworkEntry
from headrace.runtime.transform.options import LoadRequest
from headrace.server.repository.description import Description
from headrace.server.repository.folder import Files, NetworkFolder, Signature

REPOSITORY: Final = "repository"
"""Owns the networks that are the repository's own, and no client's."""

CLIENTS: Final = "a client loaded another network under this name"
COPYING: Final = "its files changed since the last look; it is loaded when they have come to rest"
LEFT_OUT: Final = "the version policy leaves it out"
UNLOADED: Final = "a client unloaded it"

PASSES = (AlreadyExists, Cancelled, ResourceExhausted, Unavailable)
"""Reasons for which a load that failed is tried again though no file has changed."""


@dataclass(eq=False, slots=True)
class Status:
    """What became of one network of the repository.

    Attributes:
        seen: at the last look.
        wanted: versions that are to be loaded.
        tried: of each version the files and the request of its last load.
        reasons: why a version, or with "" all of them, is not as its files are.
        loading: versions.
        waits: a version is wanted, and not at rest.
        shares: that a client set.
        takes_over: from a client's network of this name.
    """

    seen: NetworkFolder | None = None
    description: Description | None = None
    described: Signature | None = None
    wanted: set[str] = field(default_factory=set)
    tried: dict[str, tuple[Signature, LoadRequest]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    loading: set[str] = field(default_factory=set)
    waits: bool = False
    shares: dict[str, int] = field(default_factory=dict)
    takes_over: bool = False


def rests(now: Files, before: Files | None) -> bool:
    """Whether nobody is writing these files, as far as two looks can tell."""
    return now.settled or (before is not None and before.signature == now.signature)


def error_of(load: Future[NetworkEntry]) -> BaseException | None:
    """Why a load that has ended came to nothing."""
    return Cancelled("the server is shutting down") if load.cancelled() else load.exception()


def text_of(error: BaseException) -> str:
    where = getattr(error, "field", "")
    return f"{where}: {error}" if where else str(error)
