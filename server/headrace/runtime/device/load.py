"""What a plugin has to load, and the network that it made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions
from headrace.runtime.transform.warm_up import WarmUp


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a network onto a device.

    Attributes:
        network: as it was given, before any transformation.
        config: the caller's keys.
        options: how the caller sees the network: preprocessing and postprocessing.
        native: the backend's own bytes, already verified. If they are empty, or the device has no
            use for them, the network is compiled.
        token: if it is cancelled during the load, nothing is left of the load.
        notes: notes for the caller, before those of the load itself.
        name: the full name that the network will have; empty for a part of another network.
        warm_up: requests like those that will come, for a device that measures; None if nobody has
            said what they are like.
    """

    network: Network
    config: Mapping[str, str] = field(default_factory=dict)
    options: NetworkOptions = field(default_factory=NetworkOptions)
    native: bytes = field(default=b"", repr=False)
    token: CancelToken = field(default_factory=CancelToken)
    notes: tuple[str, ...] = ()
    name: str = ""
    warm_up: WarmUp | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A loaded network, and how it was made.

    Attributes:
        notes: what the load did that the caller did not ask for.
        restored: whether it was made from the backend's own bytes and not compiled.
        from_cache: whether these bytes came from the server's cache. For a virtual device's
            network, whether they did for at least one of its devices.
    """

    network: ExecutableNetwork
    notes: tuple[str, ...] = ()
    restored: bool = False
    from_cache: bool = False
