"""Reads a model repository. Names from clients cannot lead out of the folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.runtime.errors import FailedPrecondition, NotFound, Unavailable
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.entry import check_network_name
from headrace.runtime.loading.versions import highest
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import DEVICE
from headrace.runtime.pipelines.description import FILE as PIPELINE
from headrace.runtime.pipelines.model import network_of
from headrace.runtime.system.atomic_file import read_file
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.transform.options import LoadRequest, Reference
from headrace.server.repository import folder
from headrace.server.repository.description import Description, file_inside, read_description
from headrace.server.repository.folder import MODEL, NetworkFolder, Signature
from headrace.server.repository.pipelines import MAX_BYTES, parse_pipeline
from headrace.server.repository.triton import FILE as ENSEMBLE
from headrace.server.repository.triton import read_ensemble


class RepositoryFiles:
    """Reads one folder anew at each call. Thread-safe. Methods wait for the disk.

    Args:
        root: None if the server has no model repository.
    """

    def __init__(self, root: Path | None, limits: Limits) -> None:
        self._root = root.resolve() if root is not None else None
        self._limits = limits

    def look(self) -> dict[str, NetworkFolder]:
        """All networks in the repository, by name.

        Raises:
            OSError: the repository cannot be read.
        """
        return folder.look(self._root) if self._root is not None else {}

    def find(self, name: str) -> NetworkFolder:
        """The folder of one network.

        Raises:
            InvalidArgument: `name` is not a network name.
            NotFound: there is no such network.
            FailedPrecondition: there is no repository, or the network has a fault.
        """
        field = "model.repository"
        if self._root is None:
            message = "the server has no model repository (--model-repository)"
            raise FailedPrecondition(message, field=field)
        check_network_name(name, field)
        network_folder = folder.look_at(self._root, name)
        if network_folder is None:
            known = list(self.look())
            raise NotFound.unknown("network in the model repository", name, known, field=field)
        if network_folder.fault:
            raise FailedPrecondition(network_folder.fault, field=field)
        return network_folder

    def describe(self, name: str, network_folder: NetworkFolder) -> Description:
        """The network's description. Raises as `read_description`."""
        sources = {each.source for each in network_folder.versions.values()}
        pipeline = bool(sources) and sources <= {PIPELINE, ENSEMBLE}
        description = read_description(name, network_folder.path, DEVICE if pipeline else "CPU")
        if sources == {ENSEMBLE}:
            most = read_ensemble(self._text(network_folder.path / ENSEMBLE), name)[1]
            request = description.request
            presentation = replace(request.presentation, max_batch_size=most)
            return replace(description, request=replace(request, presentation=presentation))
        return description

    def load_request(self, name: str, reference: Reference) -> LoadRequest:
        """How to load the network that a client asks for as `name`.

        The description gives the options that the client leaves out. Raises as `find` and
        `describe`, and InvalidArgument if `reference.device` is not a device name.
        """
        network_folder = self.find(reference.network)
        return self.describe(reference.network, network_folder).as_said(name, reference).request

    def newest(self, name: str, *, spooled: bool = False) -> Network:
        """The model of the highest version. Raises as `find` and `network`."""
        network_folder = self.find(name)
        return self.network(network_folder, highest(network_folder.versions), spooled=spooled)

    def network(
        self, network_folder: NetworkFolder, version: str, *, spooled: bool = False
    ) -> Network:
        """The model of a version, from the files that `network_folder` describes.

        Args:
            spooled: the same as in `Network.from_bytes`.

        Raises:
            FailedPrecondition: the version has a fault.
            Unavailable: the version's files have changed since.
            InvalidModel: the model is not valid, or cannot be read.
        """
        files = network_folder.versions[version]
        if files.fault:
            raise FailedPrecondition(files.fault, field="model")
        self._check_unchanged(network_folder, version, files.signature)
        whole = network_folder.path
        is_inside = files.folder.resolve().is_relative_to(whole.resolve())  # otherwise a link
        try:
            within = whole if is_inside else files.folder
            if files.source == ENSEMBLE:
                text = self._text(files.folder / ENSEMBLE)
                network = network_of(read_ensemble(text, whole.name)[0], {}, self._limits)
            elif files.source == PIPELINE:
                network = self._pipeline(files.folder, within)
            else:
                network = self._model(files.folder / MODEL, within, spooled=spooled)
            network.notes += network_folder.notes
        finally:  # if the files changed, the data that was read may be wrong
            self._check_unchanged(network_folder, version, files.signature)
        return network

    def _model(self, path: Path, within: Path, *, spooled: bool) -> Network:
        """The model of a file, whose external data lies `within` a folder."""
        return Network.from_file(path, within, self._limits, spooled=spooled, root=self._root)

    def _text(self, path: Path) -> bytes:
        """
        Raises:
            FailedPrecondition: the file cannot be read.
        """
        try:
            return read_file(path, MAX_BYTES)
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            raise FailedPrecondition(message, field=path.name) from error

    def _pipeline(self, folder: Path, within: Path) -> Network:
        """The pipeline that a folder describes, with the models of its steps.

        Raises:
            FailedPrecondition, InvalidArgument, NotFound: the description is wrong.
            InvalidModel: a model is not valid, or cannot be read.
        """
        description = parse_pipeline(self._text(folder / PIPELINE))
        models: dict[str, Buffer] = {}
        for step in description.steps:
            if step.model and step.model not in models:
                path = file_inside(folder, step.model, f"step {step.name!r}: model", PIPELINE)
                models[step.model] = self._model(path, within, spooled=False).to_bytes()
        return network_of(description, models, self._limits)

    def _check_unchanged(
        self, network_folder: NetworkFolder, version: str, signature: Signature
    ) -> None:
        assert self._root is not None
        now = folder.look_at(self._root, network_folder.path.name)
        if (
            now is None
            or version not in now.versions
            or now.versions[version].signature != signature
        ):
            raise Unavailable(
                "its files changed while they were read; copy them beside, then rename"
            )
