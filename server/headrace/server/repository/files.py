"""Reads a model repository. Names from clients cannot lead out of the folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.runtime.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.entry import check_network_name
from headrace.runtime.loading.versions import highest
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import DEVICE
from headrace.runtime.pipelines.description import FILE as PIPELINE
from headrace.runtime.pipelines.model import network_of
from headrace.runtime.system.atomic_file import read_file
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.transform.options import LoadRequest, NetworkOptions, Reference
from headrace.server.repository import folder
from headrace.server.repository.description import Description, read_description
from headrace.server.repository.folder import Files, NetworkFolder, Signature
from headrace.server.repository.model_config import FILE as CONFIG
from headrace.server.repository.model_config import (
    MODEL,
    ModelSettings,
    check_ports,
    read_text,
)
from headrace.server.repository.named_files import file_inside
from headrace.server.repository.pipelines import MAX_BYTES, parse_pipeline

_AS_IT_IS: Final = NetworkOptions()


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
        """The network's description. Raises as `read_description` and `read_text`."""
        settings = self._settings(name, network_folder)
        return read_description(name, network_folder.path, settings)

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
            settings = self._settings(whole.name, network_folder)
            if settings.pipeline is not None:
                network = network_of(settings.pipeline, {}, self._limits)
            elif files.source == PIPELINE:
                network = self._pipeline(files.folder, within)
            else:
                network = self._model(_model_of(files, settings), within, spooled=spooled)
                described = read_description(
                    whole.name, whole, replace(settings, options=_AS_IT_IS)
                )
                check_ports(network, settings, described.request)
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

    def _settings(self, name: str, network_folder: NetworkFolder) -> ModelSettings:
        """What a ``config.pbtxt`` says of the network; nothing if there is none.

        Raises:
            FailedPrecondition: it cannot be read, or says another thing than the files.
            Also raises as `read_text`.
        """
        sources = {each.source for each in network_folder.versions.values() if not each.fault}
        kind = DEVICE if sources == {PIPELINE} else None
        path = network_folder.path / CONFIG
        if not os.path.lexists(path):
            return ModelSettings(device=kind)
        settings = read_text(self._text(path), name, network_folder.path)
        if settings.pipeline is not None and sources != {CONFIG}:
            raise FailedPrecondition(
                f"{CONFIG} describes an ensemble, and there is a model too; remove one of them",
                field=CONFIG,
            )
        return settings if kind is None else replace(settings, device=settings.device or kind)

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


def _model_of(files: Files, settings: ModelSettings) -> Path:
    """The file of a version that has the model.

    Raises:
        FailedPrecondition: there is no such file.
    """
    if settings.model_file == MODEL and files.source != CONFIG:
        return files.folder / files.source
    try:
        return file_inside(files.folder, settings.model_file, "default_model_filename", CONFIG)
    except InvalidArgument as error:
        name = settings.model_file[:200]
        message = f"there is no {name}, and {CONFIG} describes no ensemble"
        raise FailedPrecondition(message, field=CONFIG) from error
