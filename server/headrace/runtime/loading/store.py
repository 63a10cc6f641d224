"""What the core needs from the store that keeps its networks over a restart."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest


class NetworkStore(Protocol):
    """Keeps what makes clients' networks again after a restart. Thread-safe."""

    def keep_model(self, network: Network) -> AbstractContextManager[str]:
        """Writes the model, and gives what it is called. It stays while the context lasts, and
        after that while a network that was saved needs it. May take long."""

    def save_network(self, request: LoadRequest, model: str) -> None:
        """Has the network of that name made of a model that is kept, or by the request's reference
        if it has one; `model` is empty then. Quick."""

    def forget_network(self, name: str) -> None: ...

    def save_config(self, device: str, config: Mapping[str, str]) -> None: ...

    def save_extension(self, device: str, functions: bytes) -> None: ...
