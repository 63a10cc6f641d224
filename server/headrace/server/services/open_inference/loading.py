"""The model repository extension: the index, loads with a configuration and files, and unloads."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.errors import FailedPrecondition, InvalidArgument, NotFound, did_you_mean
from headrace.runtime.intake.external import is_inside
from headrace.runtime.loading.entry import NetworkEntry, NetworkState
from headrace.runtime.network.network import Network, Port
from headrace.runtime.transform.options import LoadRequest, Presentation, Reference, read_labels
from headrace.server.access.networks import Networks
from headrace.server.repository.description import Description
from headrace.server.repository.repository import Repository
from headrace.server.services.open_inference.configuration import MODEL_FILE, data_type
from headrace.server.services.open_inference.override import Override, read_override
from headrace.server.serving.catalogue import Catalogue
from headrace.wire.codec import CodecError

Parameter: TypeAlias = bool | int | str | bytes

MAX_FILES: Final = 64

_FILE = "file:"
_OF_VERSION = re.compile(r"([1-9][0-9]{0,17})/(.+)")
_CONFIG = "config"
_STATES: Final = {
    NetworkState.READY: "READY",
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
        reply = oip.RepositoryIndexResponse()
        for row in await asyncio.to_thread(self._repository.index):
            if self._networks.sees(row.name) and (not ready or row.state is NetworkState.READY):
                reason = row.reason or ("not loaded" if row.state is None else "")
                facts = {"version": row.version, "state": _STATES[row.state], "reason": reason}
                reply.models.add(name=self._networks.shown(row.name), **facts)
        return reply

    async def load(
        self, name: str, parameters: Mapping[str, Parameter], repository: str = ""
    ) -> oip.RepositoryModelLoadResponse:
        """Loads a model. A loaded model serves until the new load is ready.

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
        await self._catalogue.load(full, partial(self._begin, name, full, parameters))
        return oip.RepositoryModelLoadResponse()

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
        override = Override() if said is None else read_override(said, name)
        reads: dict[str, Callable[[], Network]]
        if sent.models:
            request = LoadRequest(name, DeviceName.parse("CPU"))
            description = Description(request)
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
        policy = override.policy or description.policy
        wanted = policy.choose(reads)
        if not wanted:
            raise FailedPrecondition(
                f"the version policy leaves out all versions; there are {', '.join(reads)}",
                field=_field(_CONFIG),
            )
        request = _overridden(
            replace(description.request, name=full), override, sent.texts, self._labels_now(name)
        )
        versions = [
            (
                replace(request, version=version),
                partial(_checked, reads[version], request, override),
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
            raise _unknown(key, (_CONFIG, f"{_FILE}1/{MODEL_FILE}"))
        if not isinstance(value, bytes):
            raise CodecError(_field(key), "takes bytes")
        found = _OF_VERSION.fullmatch(path := key.removeprefix(_FILE))
        if found and found[2] == MODEL_FILE:
            files.models[found[1]] = value
        elif found and is_inside(found[2]):
            files.beside.setdefault(found[1], {})[found[2]] = value
        elif path and "/" not in path:
            files.texts[path] = value
        else:
            raise CodecError(
                _field(key),
                f"is no file of a model here: give file:VERSION/{MODEL_FILE}, files with its "
                "external data in the same folder, or a file of labels",
            )
    for version in files.beside.keys() - files.models.keys():
        key = f"{_FILE}{version}/{min(files.beside[version])}"
        raise CodecError(_field(key), f"needs its model: send {_FILE}{version}/{MODEL_FILE} too")
    return files


def _overridden(
    request: LoadRequest,
    override: Override,
    texts: Mapping[str, bytes],
    labels_now: Callable[[str], tuple[str, ...]],
) -> LoadRequest:
    presentation = request.presentation
    labels = dict(presentation.labels)
    named = override.label_files
    for output, file in named.items():
        known = presentation.labels_of(output) or labels_now(output)
        if file not in texts and known:
            labels[output] = known
            continue
        if file not in texts:
            raise InvalidArgument(
                f"the configuration names {file[:200]!r} for the labels of output "
                f"{output[:200]!r}; send it as parameter 'file:{file[:200]}'",
                field=_field(_CONFIG),
            )
        labels[output] = read_labels(texts[file].decode(errors="replace"), file)
    for file in texts.keys() - set(named.values()):
        raise CodecError(
            _field(_FILE + file), "is named by no output's label_filename in the configuration"
        )
    rows = override.max_batch_size
    return replace(
        request,
        device=override.on(request.device),
        config={**request.config, **override.config},
        origin="client",
        presentation=Presentation(
            presentation.max_batch_size if rows is None else rows,
            labels,
            {} if override.policy is None else override.policy.told(),
        ),
        warm_up=override.warm_up or request.warm_up,
    )


def _checked(read: Callable[[], Network], request: LoadRequest, override: Override) -> Network:
    """Reads the network, and checks that it matches the configuration."""
    network = read()
    for kind, ports, expected, options in (
        ("input", network.inputs, override.ports.input, request.options.inputs),
        ("output", network.outputs, override.ports.output, request.options.outputs),
    ):
        known = {port.name: port for port in ports}
        for said in expected:
            if said.name not in known:
                near = did_you_mean(said.name[:200], known)
                raise InvalidArgument(
                    f"the model has no {kind} {said.name[:200]!r}{near}", field=_field(_CONFIG)
                )
            if said.name not in options:
                _compare(kind, said, known[said.name], request)
    return network


def _compare(kind: str, said: Any, port: Port, request: LoadRequest) -> None:
    if said.data_type and said.data_type != data_type(port, kind):
        name = oip.DataType.Name(data_type(port, kind))
        raise _mismatch(kind, port.name, f"is {name}, not {oip.DataType.Name(said.data_type)}")
    if kind == "input" and said.optional and not port.optional:
        raise _mismatch(kind, port.name, "has to be given; leave out optional")
    if port.shape is None or not said.dims:
        return
    shape = port.shape[1:] if request.presentation.max_batch_size else port.shape
    fits = len(said.dims) == len(shape) and all(
        -1 in (size, asked) or not isinstance(size, int) or size == asked
        for size, asked in zip(shape, said.dims, strict=True)
    )
    if not fits:
        sizes = [size if isinstance(size, int) else -1 for size in shape]
        raise _mismatch(kind, port.name, f"has dims {sizes}, not {list(said.dims)}")


def _mismatch(kind: str, name: str, message: str) -> InvalidArgument:
    return InvalidArgument(f"{kind} {name!r} of the model {message}", field=_field(_CONFIG))


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
