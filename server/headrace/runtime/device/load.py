"""What a plugin is asked to load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import NetworkOptions


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a network onto a device.

    Attributes:
        network: as it was given, before any transformation.
        config: the caller's keys.
        options: how the caller wants to see the network.
        native: the backend's own bytes, which somebody has verified. If they are empty, or the
            device has no use for them, the network is compiled.
        token: if it is cancelled meanwhile, nothing is left of the load.
        notes: what the caller is to be told besides what the load itself notes.
    """

    network: Network
    config: Mapping[str, str] = field(default_factory=dict)
    options: NetworkOptions = field(default_factory=NetworkOptions)
    native: bytes = field(default=b"", repr=False)
    token: CancelToken = field(default_factory=CancelToken)
    notes: tuple[str, ...] = ()
