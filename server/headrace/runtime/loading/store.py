"""What the core needs from the store that keeps its networks over a restart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest


class NetworkStore(Protocol):
    """Keeps what makes clients' networks again after a restart. Thread-safe."""

    def keep_model(self, network: Network) -> AbstractContextManager[str]:
        """Writes the model, and gives what it is called. It stays while the context lasts, and
        after that while a network that was saved needs it. May take long."""

    def save_network(self, request: LoadRequest, model: str, *, alone: bool) -> None:
        """Has the network of that name and version made of a model that is kept, or by the
        request's reference if it has one; `model` is empty then. One that has its name `alone`
        takes the place of all that is kept under the name. Quick."""

    def forget_network(self, name: str, versions: Collection[str] | None = None) -> None:
        """Forgets versions of a network; None: all, and how they share its requests."""

    def save_shares(self, name: str, shares: Mapping[str, int]) -> None:
        """How a network's versions share its requests, in per cent; none: nobody said."""

    def save_config(self, device: str, config: Mapping[str, str]) -> None: ...

    def save_extension(self, device: str, functions: bytes) -> None: ...
