"""Reads a model repository; what a client names stays inside it."""

from __future__ import annotations

from pathlib import Path

from headrace.runtime.errors import FailedPrecondition, NotFound, Unavailable
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.entry import check_network_name
from headrace.runtime.loading.versions import highest
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest, Reference
from headrace.server.repository import folder
from headrace.server.repository.description import Description, read_description
from headrace.server.repository.folder import MODEL, NetworkFolder, Signature


class RepositoryFiles:
    """Reads one folder afresh each time it is asked. Thread-safe; methods wait for the disk.

    Args:
        root: None if the server has no model repository.
    """

    def __init__(self, root: Path | None, limits: Limits) -> None:
        self._root = root.resolve() if root is not None else None
        self._limits = limits

    def look(self) -> dict[str, NetworkFolder]:
        """What lies there.

        Raises:
            OSError: the repository cannot be read.
        """
        return folder.look(self._root) if self._root is not None else {}

    def find(self, name: str) -> NetworkFolder:
        """
        Raises:
            InvalidArgument: `name` is no network name.
            NotFound, FailedPrecondition: there is no such network, or no repository, or it has a
                fault.
        """
        field = "model.repository"
        if self._root is None:
            message = "the server has no model repository (--model-repository)"
            raise FailedPrecondition(message, field=field)
        check_network_name(name)
        found = folder.look_at(self._root, name)
        if found is None:
            known = list(self.look())
            raise NotFound.unknown("network in the model repository", name, known, field=field)
        if found.fault:
            raise FailedPrecondition(found.fault, field=field)
        return found

    def describe(self, name: str, found: NetworkFolder) -> Description:
        """What the network's description says; raises as `read_description`."""
        return read_description(name, found.path)

    def load_request(self, name: str, reference: Reference) -> LoadRequest:
        """How to load what a client asks for as `name`: where it says nothing, the description
        does. Raises as `find` and `describe`, and InvalidArgument if `reference.device` is no
        device name."""
        found = self.find(reference.network)
        return self.describe(reference.network, found).as_said(name, reference).request

    def newest(self, name: str, *, spooled: bool = False) -> Network:
        """The model of the highest version; raises as `find` and `network`."""
        found = self.find(name)
        return self.network(found, highest(found.versions), spooled=spooled)

    def network(self, found: NetworkFolder, version: str, *, spooled: bool = False) -> Network:
        """The model of a version, as it lay there when it was looked at.

        Args:
            spooled: as `Network.from_bytes`.

        Raises:
            Unavailable: its files are others by now.
            InvalidModel: it is no sound model.
        """
        files = found.versions[version]
        self._check_unchanged(found, version, files.signature)
        try:
            network = Network.from_file(
                files.folder / MODEL, files.folder, self._limits, spooled=spooled
            )
        finally:  # what was read may be wrong because of it
            self._check_unchanged(found, version, files.signature)
        return network

    def _check_unchanged(self, found: NetworkFolder, version: str, signature: Signature) -> None:
        assert self._root is not None
        now = folder.look_at(self._root, found.path.name)
        if (
            now is None
            or version not in now.versions
            or now.versions[version].signature != signature
        ):
            raise Unavailable(
                "its files changed while they were read; copy them beside, then rename"
            )
