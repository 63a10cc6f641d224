"""A network in the registry: its key, its state, and the form of names and versions."""

from __future__ import annotations

import enum
import math
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.errors import HeadraceError, InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.execution.job import Job
from headrace.runtime.system.asker import NOBODY, Asker

FIRST_VERSION: Final = "1"
"""The version of a network that is loaded without a version."""

_OWNED: Final = "@"
"""Separates the name that clients use from the network's owner. Neither of them contains it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")


def is_network_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def check_network_name(name: str, field: str = "name") -> str:
    """Returns `name` if it is a network name.

    Raises:
        InvalidArgument: `name` is not a network name, or is empty. `field` is the one at fault.
    """
    if not name:
        raise InvalidArgument(f"the network has no name: pass {field}=", field=field)
    if not is_network_name(name):
        raise InvalidArgument(
            f"{name[:200]!r} is not a network name: 1 to 128 letters, digits, '.', '_' and '-', "
            f"beginning with a letter or digit",
            field=field,
        )
    return name


def full_name(name: str, owner: str) -> str:
    """The name that the registry knows a network by: ``name``, or ``name@owner`` if a tenant owns
    it. So two tenants may use the same name.

    Args:
        owner: the tenant, in characters that a file name may have and without ``@``; empty for a
            network that all clients share.
    """
    return f"{name}{_OWNED}{owner}" if owner else name


def plain_name(full: str) -> str:
    """The name that the network's owner uses for it."""
    return full.rpartition(_OWNED)[0] or full


def owner_of(full: str) -> str:
    """The tenant that owns the network; empty for a network that all clients share."""
    name, _, owner = full.rpartition(_OWNED)
    return owner if name else ""


def is_version(text: str) -> bool:
    """Whether `text` is a version: a number from 1, without leading zeros."""
    return _VERSION.fullmatch(text) is not None


def check_version(version: str, field: str = "version") -> str:
    """Returns `version` if it is a version.

    Raises:
        InvalidArgument: `version` is not a version.
    """
    if not is_version(version):
        raise InvalidArgument(
            f"{version[:200]!r} is not a version: a number from 1, of at most 18 digits",
            field=field,
        )
    return version


class NetworkState(enum.Enum):
    KNOWN = "known"
    EVICTED = "evicted"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


COLD: Final = (NetworkState.KNOWN, NetworkState.EVICTED)
"""The states of a network that is not loaded and that its first request loads."""

SERVING: Final = (NetworkState.READY, *COLD)
"""The states in which a network takes requests."""


class Residence(NamedTuple):
    """How a network that the server can load again stays in memory.

    Attributes:
        pinned: whether it stays once it is loaded.
        min_idle_seconds: for how long nobody must have used it before it makes room.
        of_client: whether a client has loaded it. Its model then stays in the server while it is
            not loaded, and it counts as one of the networks that the server or its owner may have.
    """

    pinned: bool = False
    min_idle_seconds: float = 0.0
    of_client: bool = False


USUAL: Final = Residence()

Again: TypeAlias = "Callable[[NetworkEntry, str], Future[NetworkEntry]]"
"""Begins a load of a network, which it gets as it is while it is not loaded."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """For whom a network is in the server, and how it stays there, loaded or not.

    Attributes:
        owner: the object that the versions of one name share if they may be loaded and replaced
            beside each other; None for a network that is alone under its name.
        asker: who has asked for its load.
        again: loads it again, for the identity of a name; None if the server cannot.
    """

    owner: object = None
    asker: Asker = NOBODY
    residence: Residence = USUAL
    again: Again | None = None


UNOWNED: Final = Tenancy()

_HALF_LIFE_SECONDS: Final = 300.0


class NetworkKey(NamedTuple):
    """Identifies one load of one version of a network. No other load ever gets the same key.

    Attributes:
        name: the network's full name.
    """

    name: str
    version: str
    generation: int


@dataclass(eq=False, slots=True)
class NetworkEntry:
    """A network in the registry. The registry's lock guards all fields except `token`, which is
    thread-safe by itself.

    Attributes:
        record: the data that the registry's owner keeps with a network.
        memory_bytes: what it takes in memory, as its last load has shown; 0 before.
        maps_weights: whether its last load has mapped its weights from a file.
        uses: how often it was used, as `uses_left` counts when it was last used.
        stage_seconds: what each stage of its load took; empty before it has ended.
        last_used: when its last request ended or, without one, when it was loaded, on the monotonic
            clock; 0.0 before.
        model_bytes: the size of the model, once it has been read.
        given_up: for a network that is being loaded, the reason why nobody wants it any more.
        shadow: sees each request to it before it is submitted; None without a shadow.
    """

    key: NetworkKey
    device: str
    record: Any
    tenancy: Tenancy = UNOWNED
    state: NetworkState = NetworkState.LOADING
    reason: str = ""
    executable: ExecutableNetwork | None = None
    load_seconds: float = 0.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    maps_weights: bool = False
    uses: float = 0.0
    last_used: float = 0.0
    model_bytes: int = 0
    references: int = 0
    given_up: HeadraceError | None = None
    token: CancelToken = field(default_factory=CancelToken)
    on_drained: Callable[[], object] | None = None
    shadow: Callable[[NetworkEntry, Job], object] | None = None

    @property
    def idle_seconds(self) -> float | None:
        """For how long nobody has used it; None before its first load."""
        return time.monotonic() - self.last_used if self.last_used else None

    def count_use(self, now: float, times: int = 1) -> None:
        self.uses, self.last_used = self.uses_left(now) + times, now

    def uses_left(self, now: float) -> float:
        """How often it was used. A use counts half after `_HALF_LIFE_SECONDS`."""
        return self.uses * math.exp2((self.last_used - now) / _HALF_LIFE_SECONDS)
