"""The model repository extension: the index, loads with a configuration and files, and unloads."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    did_you_mean,
)
from headrace.runtime.intake.external import is_inside
from headrace.runtime.loading.entry import SERVING, NetworkEntry, NetworkState
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.model import network_of
from headrace.runtime.transform.options import LoadRequest, Presentation, Reference, read_labels
from headrace.server.access.networks import Networks
from headrace.server.repository.description import Description
from headrace.server.repository.model_config import (
    MODEL,
    ModelSettings,
    read_json,
)
from headrace.server.repository.model_ports import check_ports
from headrace.server.repository.repository import Repository
from headrace.server.serving.catalogue import Catalogue
from headrace.server.serving.presence import when_loaded
from headrace.wire.codec import CodecError

Parameter: TypeAlias = bool | int | str | bytes

MAX_FILES: Final = 64

_FILE = "file:"
_OF_VERSION = re.compile(r"([1-9][0-9]{0,17})/(.+)")
_CONFIG = "config"
_STATES: Final = {
    NetworkState.READY: "READY",
    NetworkState.KNOWN: "READY",
    NetworkState.EVICTED: "READY",
    NetworkState.LOADING: "LOADING",
    NetworkState.DRAINING: "UNLOADING",
    NetworkState.FAILED: "UNAVAILABLE",
    None: "UNAVAILABLE",
}


class ModelRepository:
    """May be used on any event loop. Calls that wait for the disk run on the loop's threads. Loads
    run on the core's threads."""

    def __init__(
        self, core: Core, networks: Networks, repository: Repository, catalogue: Catalogue
    ) -> None:
        self._core = core
        self._networks = networks
        self._repository = repository
        self._catalogue = catalogue

    async def index(self, repository: str = "", *, ready: bool) -> oip.RepositoryIndexResponse:
        """Lists the loaded models and the models in the repository.

        Args:
            repository: has to be empty, because there is only one repository.
            ready: whether to list only models that take requests.

        Raises:
            NotFound: another repository is named.
            FailedPrecondition: the repository cannot be read.
        """
        _check_repository(repository)
        return await asyncio.to_thread(self._index, ready=ready)

    def _index(self, *, ready: bool) -> oip.RepositoryIndexResponse:
        reply = oip.RepositoryIndexResponse()
        for row in self._repository.index():
            if self._networks.sees(row.name) and (not ready or row.state in SERVING):
                reason = row.reason or ("not loaded" if row.state is None else "")
                facts = {"version": row.version, "state": _STATES[row.state], "reason": reason}
                reply.models.add(name=self._networks.shown(row.name), **facts)
        return reply

    async def load(
        self, name: str, parameters: Mapping[str, Parameter], repository: str = ""
    ) -> oip.RepositoryModelLoadResponse:
        """Loads a model. A loaded model serves until the new load is ready. If somebody else loads
        it, perhaps by a request, this load begins after that one.

        Args:
            parameters: ``config`` is a ModelConfig as JSON; ``file:1/model.onnx`` is version 1 of
                the model, ``file:1/NAME`` holds its external data, and ``file:NAME`` is the file of
                labels that the configuration names.

        Raises:
            NotFound: there is no such model, and the request has no file.
            CodecError, InvalidArgument, Unimplemented: a parameter is invalid.
            Also raises the errors of the load.
        """
        _check_repository(repository)
        full = self._networks.new(name)
        begin = partial(self._begin, name, full, parameters)
        has_waited = True
        while True:
            try:
                await when_loaded(
                    partial(self._catalogue.load, full, begin, self._repository.threads)
                )
                return oip.RepositoryModelLoadResponse()
            except AlreadyExists:
                under_way = self._core.life.under_way(full)
                if under_way is not None:
                    waited = asyncio.wrap_future(under_way)
                    waited.add_done_callback(asyncio.Future.exception)  # who began it hears of it
                    await asyncio.wait([waited])
                elif not has_waited:
                    raise
                has_waited = under_way is not None  # otherwise it has just ended

    async def unload(
        self, name: str, parameters: Mapping[str, Parameter], repository: str = ""
    ) -> oip.RepositoryModelUnloadResponse:
        """Unloads all versions of a model. Returns when its memory is free.

        Raises:
            NotFound: no model has the name.
            CodecError: a parameter is invalid.
        """
        _check_repository(repository)
        for key, value in parameters.items():
            if key != "unload_dependents" or not isinstance(value, bool):
                raise _unknown(key, ("unload_dependents",))
        full = self._networks.changeable(name)
        await self._catalogue.unload(partial(self._repository.unload, full))
        return oip.RepositoryModelUnloadResponse()

    # -- inside --

    def _begin(
        self, name: str, full: str, parameters: Mapping[str, Parameter]
    ) -> list[Future[NetworkEntry]]:
        sent = _files(parameters)
        said = parameters.get(_CONFIG)
        if said is None and not sent.models:
            return self._repository.load(full, Reference(name), replace=True)
        if said is not None and not isinstance(said, str):
            raise CodecError(_field(_CONFIG), "takes text")
        settings = ModelSettings() if said is None else read_json(said, name)
        reads: dict[str, Callable[[], Network]]
        description = Description(LoadRequest(full, DeviceName.parse("CPU")))
        if settings.pipeline is not None:
            if sent.models:
                raise CodecError(_field(_CONFIG), "describes an ensemble, which has no model")
            reads = {"1": partial(network_of, settings.pipeline, {}, self._core.limits)}
        elif sent.models:
            from_bytes = partial(Network.from_bytes, limits=self._core.limits, spooled=True)
            reads = {
                version: partial(from_bytes, data, beside=sent.beside.get(version, {}))
                for version, data in sent.models.items()
            }
        else:
            files = self._repository.files
            found = files.find(name)
            description = files.describe(name, found)
            reads = {
                version: partial(files.network, found, version, spooled=True)
                for version in found.versions
            }
        policy = settings.policy or description.policy
        wanted = policy.choose(reads)
        if not wanted:
            raise FailedPrecondition(
                f"the version policy leaves out all versions; there are {', '.join(reads)}",
                field=_field(_CONFIG),
            )
        described = replace(description.request, name=full, origin="client")
        presentation, labels_now = described.presentation, self._labels_now(name)
        labels = _labels(
            settings,
            sent.texts,
            lambda output: presentation.labels_of(output) or labels_now(output),
        )
        request = settings.applied(described, labels)
        compared = replace(request, options=described.options)
        versions = [
            (
                replace(request, version=version),
                partial(_checked, reads[version], settings, compared),
            )
            for version in sorted(wanted, key=int)
        ]
        return self._repository.begin(full, versions, replace=True)

    def _labels_now(self, name: str) -> Callable[[str], tuple[str, ...]]:
        """Gives the labels that an output of the loaded network has, for a configuration that the
        server has given: it names files that need not be sent again."""
        try:
            presentation: Presentation = self._networks.find(name).record.request.presentation
        except NotFound:
            presentation = Presentation()
        return presentation.labels_of


class _Files(NamedTuple):
    """The files of a load.

    Attributes:
        models: the models, by their version.
        beside: the files with external data of each version, by their path beside the model.
        texts: other files, by their name.
    """

    models: dict[str, bytes]
    beside: dict[str, dict[str, bytes]]
    texts: dict[str, bytes]


def _files(parameters: Mapping[str, Parameter]) -> _Files:
    """
    Raises:
        CodecError: a parameter is unknown, or is not a file of a model.
    """
    given = {key: value for key, value in parameters.items() if key != _CONFIG}
    if len(given) > MAX_FILES:
        raise InvalidArgument(f"there are more than {MAX_FILES} files", field="parameters")
    files = _Files({}, {}, {})
    for key, value in given.items():
        if not key.startswith(_FILE):
            raise _unknown(key, (_CONFIG, f"{_FILE}1/{MODEL}"))
        if not isinstance(value, bytes):
            raise CodecError(_field(key), "takes bytes")
        found = _OF_VERSION.fullmatch(path := key.removeprefix(_FILE))
        if found and found[2] == MODEL:
            files.models[found[1]] = value
        elif found and is_inside(found[2]):
            files.beside.setdefault(found[1], {})[found[2]] = value
        elif path and "/" not in path:
            files.texts[path] = value
        else:
            raise CodecError(
                _field(key),
                f"is no file of a model here: give file:VERSION/{MODEL}, files with its "
                "external data in the same folder, or a file of labels",
            )
    for version in files.beside.keys() - files.models.keys():
        key = f"{_FILE}{version}/{min(files.beside[version])}"
        raise CodecError(_field(key), f"needs its model: send {_FILE}{version}/{MODEL} too")
    return files


def _labels(
    settings: ModelSettings,
    texts: Mapping[str, bytes],
    known: Callable[[str], tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    """The labels that the configuration names, by output.

    Args:
        texts: the files that came with the load.
        known: the labels that an output has if its file did not come.

    Raises:
        InvalidArgument, CodecError: a file is missing, or is not named.
    """
    labels = {}
    for output, file in settings.label_files.items():
        if file in texts:
            labels[output] = read_labels(texts[file].decode(errors="replace"), file)
        elif there := known(output):
            labels[output] = there
        else:
            raise InvalidArgument(
                f"the configuration names {file[:200]!r} for the labels of output "
                f"{output[:200]!r}; send it as parameter 'file:{file[:200]}'",
                field=_field(_CONFIG),
            )
    for file in texts.keys() - set(settings.label_files.values()):
        raise CodecError(
            _field(_FILE + file), "is named by no output's label_filename in the configuration"
        )
    return labels


def _checked(read: Callable[[], Network], settings: ModelSettings, request: LoadRequest) -> Network:
    """Reads the network, and checks that it matches the configuration."""
    return check_ports(read(), settings, request)


def _check_repository(name: str) -> None:
    if name:
        raise NotFound(
            f"unknown repository {name[:200]!r}; there is one, without a name",
            field="repository_name",
        )


def _unknown(key: str, known: tuple[str, ...]) -> CodecError:
    return CodecError(_field(key), f"is not a parameter here{did_you_mean(key[:100], known)}")


def _field(key: str) -> str:
    return f"parameters[{key[:200]!r}]"
