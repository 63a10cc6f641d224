"""What the protocol says of the server and of its models, as the messages of its .proto."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version as version_of
from typing import Any, Final

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.core import Core
from headrace.runtime.errors import NotFound
from headrace.runtime.loading.registry import NetworkEntry, NetworkState
from headrace.runtime.network.network import Port
from headrace.server.services.open_inference.datatypes import datatype_of

NAME: Final = "headrace"
PLATFORM: Final = "onnx"


class Models:
    """Thread-safe: gRPC and REST ask it on threads of their own.

    Args:
        unready: why the server takes no requests; None if it does.
    """

    def __init__(self, core: Core, unready: Callable[[], str | None]) -> None:
        self._core = core
        self._unready = unready
        self._version = version_of("headrace")

    def live(self) -> oip.ServerLiveResponse:
        """Whether the server answers: it does."""
        return oip.ServerLiveResponse(live=True)

    def ready(self) -> oip.ServerReadyResponse:
        """Whether the server takes requests."""
        return oip.ServerReadyResponse(ready=self._unready() is None)

    def model_ready(self, name: str, version: str = "") -> oip.ModelReadyResponse:
        """Whether a model takes requests: it is loaded, and its device works.

        Raises:
            NotFound: there is no such model.
        """
        entry = self._find(name, version)
        return oip.ModelReadyResponse(ready=self._is_ready(entry))

    def server_metadata(self) -> oip.ServerMetadataResponse:
        """What the server is, and which extensions of the protocol it serves."""
        return oip.ServerMetadataResponse(name=NAME, version=self._version)

    def model_metadata(self, name: str, version: str = "") -> oip.ModelMetadataResponse:
        """A model's inputs and outputs.

        Raises:
            NotFound, Unavailable, FailedPrecondition: as `NetworkRegistry.acquire`.
            Unimplemented: it has an input or output that the protocol has no words for.
        """
        entry = self._acquire(name, version)
        try:
            assert entry.executable is not None
            return oip.ModelMetadataResponse(
                name=name,
                versions=["1"],
                platform=PLATFORM,
                inputs=[_metadata(port, "input") for port in entry.executable.inputs],
                outputs=[_metadata(port, "output") for port in entry.executable.outputs],
            )
        finally:
            self._core.networks.release(entry)

    def _find(self, name: str, version: str) -> NetworkEntry:
        _check_version(name, version)
        return self._core.networks.find(name)

    def _acquire(self, name: str, version: str) -> NetworkEntry:
        _check_version(name, version)
        return self._core.networks.acquire(name)

    def _is_ready(self, entry: NetworkEntry) -> bool:
        return entry.state is NetworkState.READY


def _check_version(name: str, version: str) -> None:
    if version not in ("", "1"):
        raise NotFound(f"model {name[:200]!r} has no version {version[:20]!r}; it has 1")


def _metadata(port: Port, kind: str) -> Any:
    return oip.ModelMetadataResponse.TensorMetadata(
        name=port.name,
        datatype=datatype_of(port.dtype, f"{kind} {port.name!r}"),
        shape=[size if isinstance(size, int) else -1 for size in port.shape or ()],
    )
