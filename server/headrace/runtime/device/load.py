"""What a plugin is asked to load, and what it has made of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a network onto a device.

    Attributes:
        network: as it was given, before any transformation.
        config: the caller's keys.
        options: how the caller sees the network: preprocessing and postprocessing.
        native: the backend's own bytes, which somebody has verified. If they are empty, or the
            device has no use for them, the network is compiled.
        token: if it is cancelled meanwhile, nothing is left of the load.
        notes: notes for the caller, before those of the load itself.
    """

    network: Network
    config: Mapping[str, str] = field(default_factory=dict)
    options: NetworkOptions = field(default_factory=NetworkOptions)
    native: bytes = field(default=b"", repr=False)
    token: CancelToken = field(default_factory=CancelToken)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A network that was made, and how.

    Attributes:
        notes: what was done that the caller did not ask for.
        restored: it was made of the backend's own bytes, not compiled.
        from_cache: and these came from the server's cache; of a virtual device's network, for one
            of its devices at least.
    """

    network: ExecutableNetwork
    notes: tuple[str, ...] = ()
    restored: bool = False
    from_cache: bool = False
