"""The status of one network of the repository, and the reasons for it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from headrace.runtime.errors import Cancelled
from headrace.runtime.loading.registry import NetworkEntry
from headrace.runtime.loading.shadows.shadow import Shadow
from headrace.runtime.transform.options import LoadRequest
from headrace.server.reconcile import Want
from headrace.server.repository.description import Description
from headrace.server.repository.folder import Files, NetworkFolder, Signature

REPOSITORY: Final = "repository"
"""The owner of the repository's own networks. Clients' networks have other owners."""

CLIENTS: Final = "a client loaded another network under this name"
COPYING: Final = "its files changed since the last look; it is loaded when they have come to rest"
LEFT_OUT: Final = "the version policy leaves it out"
UNLOADED: Final = "a client unloaded it"


@dataclass(eq=False, slots=True)
class RepositoryStatus:
    """The status of one network of the repository.

    Attributes:
        seen: the network's folder at the last look.
        want: what the server should have of it, by the last look.
        tried: the files and the request of each version's last load.
        may_pass: the versions whose last load failed for a reason that may pass.
        reasons: why a version differs from its files. The key "" stands for all versions.
        loading: the last load of each version, until its end is noted or a client unloads it.
        shares: the shares that a client set.
        shadow: the shadow that a client set; None if the description's holds.
        takes_over: whether the network is taking the place of a client's network of this name.
    """

    seen: NetworkFolder | None = None
    description: Description | None = None
    described: Signature | None = None
    want: Want = field(default_factory=Want)
    tried: dict[str, tuple[Signature, LoadRequest]] = field(default_factory=dict)
    may_pass: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    loading: dict[str, Future[NetworkEntry]] = field(default_factory=dict)
    shares: dict[str, int] = field(default_factory=dict)
    shadow: Shadow | None = None
    takes_over: bool = False

    def is_loading(self, version: str) -> bool:
        """Whether the version's load is under way. Others see its end before it is noted."""
        return version in self.loading and not self.loading[version].done()


def rests(now: Files, before: Files | None) -> bool:
    """Whether nobody seems to be writing these files, judged by two looks."""
    return now.settled or (before is not None and before.signature == now.signature)


def error_of(load: Future[NetworkEntry]) -> BaseException | None:
    """The error that an ended load failed with, or None."""
    return Cancelled("the server is shutting down") if load.cancelled() else load.exception()


def text_of(error: BaseException) -> str:
    where = getattr(error, "field", "")
    return f"{where}: {error}" if where else str(error)
