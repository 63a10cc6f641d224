"""The interface of the store that keeps the core's networks over a restart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from headrace.runtime.loading.shadows.shadow import Shadow
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest


class NetworkStore(Protocol):
    """Keeps the data that the server needs to load clients' networks again after a restart.
    Thread-safe.

    Attributes:
        shared: whether the servers of a cluster share the store.
    """

    @property
    def shared(self) -> bool: ...

    def keep_model(self, network: Network) -> AbstractContextManager[str]:
        """Writes the model, and gives its name. The model stays while the context lasts, and after
        that while a saved network needs it. May take long."""

    def save_network(self, request: LoadRequest, model: str, *, alone: bool) -> None:
        """Saves the request and the name of its kept model. If the request has a reference, the
        network is made by that, and `model` is empty. A network that is `alone` under its name
        replaces all networks that are saved under the name. Quick."""

    def forget_network(self, name: str, versions: Collection[str] | None = None) -> None:
        """Removes versions of a network. None removes all versions, their shares of the
        requests and the shadow."""

    def save_shares(self, name: str, shares: Mapping[str, int]) -> None:
        """Saves how a network's versions share its requests, in per cent. Empty if no shares are
        set."""

    def save_shadow(self, name: str, shadow: Shadow) -> None:
        """Saves the shadow that a client gave a network, also that it is to have none."""

    def save_changes(self, name: str, version: str, changes: Mapping[str, str]) -> None:
        """Saves the keys of a loaded network that a client has changed."""

    def save_config(self, device: str, config: Mapping[str, str]) -> None: ...

    def save_extension(self, device: str, functions: bytes) -> None: ...
