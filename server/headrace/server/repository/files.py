"""Reads a model repository. Names from clients cannot lead out of the folder."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.runtime.cache.models import KnownModels
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.entry import FIRST_VERSION, check_network_name, is_network_name
from headrace.runtime.loading.versions import highest
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import DEVICE
from headrace.runtime.pipelines.description import FILE as PIPELINE
from headrace.runtime.pipelines.model import network_of
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.system.load_stages import load_stage
from headrace.runtime.transform.options import LoadRequest, NetworkOptions, Reference
from headrace.server.repository import folder
from headrace.server.repository.description import Description, read_description
from headrace.server.repository.folder import Files, NetworkFolder, Signature
from headrace.server.repository.mirror import Mirror
from headrace.server.repository.model_config import FILE as CONFIG
from headrace.server.repository.model_config import (
    MODEL,
    ModelSettings,
    read_text,
)
from headrace.server.repository.model_ports import check_ports
from headrace.server.repository.named_files import file_inside, read_bounded
from headrace.server.repository.ovms import FILE as OVMS
from headrace.server.repository.ovms import OvmsFile, OvmsNetworks
from headrace.server.repository.pipelines import MAX_BYTES, parse_pipeline

_log = logging.getLogger(__name__)

_AS_IT_IS: Final = NetworkOptions()


class RepositoryFiles:
    """Reads one folder anew at each call. Thread-safe. Methods wait for the disk.

    Args:
        root: None if the server has no model repository.
        ovms_config: the configuration of OpenVINO Model Server, which then says what the networks
            are; None for all folders.
        mirror: what copies the folder from a store; None if the folder is no copy.
        models: reads the models; None if nothing is known of them before.
    """

    def __init__(
        self,
        root: Path | None,
        limits: Limits,
        ovms_config: Path | None = None,
        mirror: Mirror | None = None,
        models: KnownModels | None = None,
    ) -> None:
        self._models = models or KnownModels(None, limits)
        self._root = root.resolve() if root is not None else None
        address = mirror.address if mirror is not None else ""
        self._ovms = OvmsFile(ovms_config, root, address) if root and ovms_config else None
        self._limits = limits
        self._mirror = mirror

    @property
    def trouble(self) -> str:
        """Why the last look at the store failed; empty if it did not, or there is no store."""
        return self._mirror.trouble if self._mirror is not None else ""

    def look(self) -> dict[str, NetworkFolder]:
        """All networks in the repository, by name.

        Raises:
            OSError: the repository cannot be read.
            Also raises as `OvmsFile.networks`.
        """
        if self._ovms is not None:
            networks = self._ovms.networks()
            return {name: self._of_ovms(networks, name) for name in sorted(networks.names())}
        if self._root is None:
            return {}
        found = {name: self._marked(each) for name, each in folder.look(self._root).items()}
        for name, fault in self._faults().items():
            found[name] = self._with_fault(name, found.get(name), fault)
        return found

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
        network_folder = self._look_at(name)
        if network_folder is None:
            known = list(self.look())
            raise NotFound.unknown("network in the model repository", name, known, field=field)
        if network_folder.fault:
            raise FailedPrecondition(network_folder.fault, field=field)
        return network_folder

    def describe(self, name: str, network_folder: NetworkFolder) -> Description:
        """The network's description. Raises as `read_description` and `read_text`."""
        if any(each.source == OVMS for each in network_folder.versions.values()):
            return Description(LoadRequest(name, DeviceName.parse(DEVICE), origin="repository"))
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
        with self._copied(network_folder.path, files.folder):
            return self._read(network_folder, version, spooled=spooled)

    def is_copied(self, network_folder: NetworkFolder, version: str) -> bool:
        """Whether a version's files are on this machine, and need not be copied from a store."""
        there = network_folder.path, network_folder.versions[version].folder
        return self._mirror is None or all(map(self._mirror.is_copied, there))

    @property
    def is_refreshing(self) -> bool:
        """Whether a look at the store is under way."""
        return self._mirror is not None and self._mirror.is_syncing

    def refresh(self, name: str) -> None:
        """Has a network as it is in the store now, if there is a store and that answers."""
        if self._mirror is None:
            return
        try:  # the names in that configuration are not those of folders
            self._mirror.sync("" if self._ovms is not None else name)
        except OSError as error:
            _log.warning("network %s is loaded as it was: %s", name, error.strerror)

    # -- inside --

    def _read(self, network_folder: NetworkFolder, version: str, *, spooled: bool) -> Network:
        files, whole = network_folder.versions[version], network_folder.path
        is_inside = files.folder.resolve().is_relative_to(whole.resolve())  # otherwise a link
        try:
            within = whole if is_inside else files.folder
            name, ovms = network_folder.network, self._ovms.networks() if self._ovms else None
            if ovms is not None and files.source == OVMS and name in ovms.pipelines:
                return network_of(ovms.pipelines[name].description, {}, self._limits)
            settings = self._settings(name, network_folder)
            if settings.pipeline is not None:
                network = network_of(settings.pipeline, {}, self._limits)
            elif files.source == PIPELINE:
                network = self._pipeline(files.folder, within)
            else:
                network = self._model(_model_of(files, settings), within, spooled=spooled)
                described = read_description(name, whole, replace(settings, options=_AS_IT_IS))
                check_ports(network, settings, described.request)
                if ovms is not None and name in ovms.models:
                    ovms.models[name].check(network)
            network.notes += network_folder.notes
        finally:  # if the files changed, the data that was read may be wrong
            self._check_unchanged(network_folder, version, files.signature)
        return network

    def _model(self, path: Path, within: Path, *, spooled: bool) -> Network:
        """The model of a file, whose external data lies `within` a folder."""
        return self._models.from_file(path, within, spooled=spooled, root=self._root)

    def _look_at(self, name: str) -> NetworkFolder | None:
        """One network of the repository, or None if there is no network under that name."""
        assert self._root is not None
        if self._ovms is None:
            found, fault = folder.look_at(self._root, name), self._faults().get(name)
            found = self._marked(found) if found is not None else None
            return found if fault is None else self._with_fault(name, found, fault)
        networks = self._ovms.networks()
        return self._of_ovms(networks, name) if name in networks.names() else None

    @contextmanager
    def _copied(self, *folders: Path) -> Iterator[None]:
        """
        Raises:
            ResourceExhausted: there is no room for a copy.
            Unavailable: the store has other files now, or cannot be read.
        """
        with ExitStack() as held:
            if self._mirror is not None:
                try:
                    with load_stage("copy"):
                        held.enter_context(self._mirror.used(*folders))
                except OSError as error:
                    why = error.strerror or type(error).__name__
                    why = why.replace(self._mirror.address, "the store")  # clients see it
                    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                    raise (ResourceExhausted(why) if full else Unavailable(why)) from error
            yield

    def _marked(self, found: NetworkFolder) -> NetworkFolder:
        """The folder with signatures that change with the files of the store. Those of a copy
        change when it is copied."""
        if self._mirror is None:
            return found
        mark = self._mirror.mark
        own = mark(found.path)

        def marked(files: Files) -> Files:
            names = [stamp.path for stamp in files.signature]
            marks = [mark(files.folder)]
            marks += [own] if any(name.startswith("../") for name in names) else []
            return replace(files, signature=tuple(map(folder.stamp_of, names + marks)))

        versions = {version: marked(files) for version, files in found.versions.items()}
        return replace(found, versions=versions, description=marked(found.description))

    def _faults(self) -> Mapping[str, str]:
        """Why the newest files of networks are not in the folder, by name."""
        return self._mirror.faults if self._mirror is not None else {}

    def _with_fault(self, name: str, found: NetworkFolder | None, fault: str) -> NetworkFolder:
        """A network whose newest files are not in the folder. Versions that are there can be read:
        those that serve go on."""
        assert self._root is not None
        path = self._root / name
        nameless = not is_network_name(name)
        return replace(
            found or NetworkFolder(path, {}, Files(path, ())), fault=fault, nameless=nameless
        )

    def _of_ovms(self, networks: OvmsNetworks, name: str) -> NetworkFolder:
        assert self._root is not None
        if name in networks.faults:
            nothing = Files(self._root, ())
            return NetworkFolder(self._root, {}, nothing, networks.faults[name], name=name)
        if name in networks.pipelines:
            stamp = folder.stamp_of(networks.pipelines[name].text)
            whole = Files(self._root, (stamp,), settled=True, source=OVMS)
            return NetworkFolder(self._root, {FIRST_VERSION: whole}, whole, name=name)
        model = networks.models[name]
        found = self._marked(folder.look_in(self._root, model.path))
        signature = (*found.description.signature, folder.stamp_of(model.text))
        return replace(
            found, name=name, description=replace(found.description, signature=signature)
        )

    def _settings(self, name: str, network_folder: NetworkFolder) -> ModelSettings:
        """What a ``config.pbtxt`` says of the network; nothing if there is none.

        Raises:
            FailedPrecondition: it cannot be read, or says another thing than the files.
            Also raises as `read_text`.
        """
        sources = {each.source for each in network_folder.versions.values() if not each.fault}
        kind = DEVICE if sources == {PIPELINE} else None
        if self._ovms is not None:
            model = self._ovms.networks().models.get(name)
            if model is None:
                raise Unavailable(f"{OVMS} changed while it was read")
            return model.settings if kind is None else replace(model.settings, device=kind)
        path = network_folder.path / CONFIG
        if not os.path.lexists(path):
            return ModelSettings(device=kind)
        settings = read_text(read_bounded(path, CONFIG, MAX_BYTES), name, network_folder.path)
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
        description = parse_pipeline(read_bounded(folder / PIPELINE, PIPELINE, MAX_BYTES))
        models: dict[str, Buffer] = {}
        for step in description.steps:
            if step.model and step.model not in models:
                path = file_inside(folder, step.model, f"step {step.name!r}: model", PIPELINE)
                models[step.model] = self._model(path, within, spooled=False).to_bytes()
        return network_of(description, models, self._limits)

    def _check_unchanged(
        self, network_folder: NetworkFolder, version: str, signature: Signature
    ) -> None:
        now = self._look_at(network_folder.network)
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
