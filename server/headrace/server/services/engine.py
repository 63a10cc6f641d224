"""The service's methods except inference. Each decodes, calls the core, and encodes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import HeadraceError, InvalidArgument, NotLoaded, Unavailable
from headrace.runtime.loading.recent import LARGEST_KEPT
from headrace.runtime.loading.registry import NetworkEntry
from headrace.runtime.loading.shadows.shadow import Shadow, copy_name
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import DEVICE
from headrace.runtime.pipelines.model import network_of
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.transform.options import LoadRequest, Reference
from headrace.runtime.transform.query import QueryResult
from headrace.server.access.audit import about
from headrace.server.access.identity import CALLER
from headrace.server.access.networks import Networks
from headrace.server.repository.pipelines import parse_pipeline
from headrace.server.repository.repository import Repository
from headrace.server.services import convert
from headrace.server.services.targets import Targets
from headrace.server.services.uploads import Uploads
from headrace.server.serving.catalogue import Catalogue
from headrace.server.serving.completion_sink import deadline_after
from headrace.server.serving.presence import when_loaded
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.message import parse_request
from headrace.wire.parameters import encode_parameter

_STATES = {DeviceState.UP: pb.UP, DeviceState.DOWN: pb.DOWN, DeviceState.RESTARTING: pb.RESTARTING}


class Servicer:
    """Belongs to the event loop's thread. Long work runs on the core's load executor. Calls that
    may block run on the loop's own executor."""

    def __init__(
        self,
        core: Core,
        networks: Networks,
        uploads: Uploads,
        repository: Repository,
        catalogue: Catalogue,
    ) -> None:
        self._core = core
        self._networks = networks
        self._targets = Targets(core, networks)
        self._uploads = uploads
        self._repository = repository
        self._catalogue = catalogue

    # -- networks --

    async def upload_model(self, context: Any) -> pb.UploadModelReply:
        async def chunks() -> AsyncIterator[bytes]:
            while (data := await context.read()) is not None:
                yield parse_request(pb.UploadModelRequest, data).chunk

        digest, size = await self._uploads.receive(chunks(), self._networks.owner)
        return pb.UploadModelReply(digest=digest, size_bytes=size)

    async def load_network(self, request: pb.LoadNetworkRequest, _: Any) -> pb.NetworkInfo:
        name = self._networks.new(request.name or request.model.repository)
        if request.model.WhichOneof("source") == "repository":
            reference, replace = _reference(request), request.replace
            begin = partial(self._repository.load, name, reference, replace=replace)
            begin_load = partial(self._catalogue.load, name, begin, self._repository.threads)
            load = await when_loaded(begin_load)
            return self._info(load[-1])
        wanted = self._load_request(request, name)
        network = self._network(request.model, spooled=True)

        def begin_one() -> list[Future[NetworkEntry]]:
            self._core.plugin(wanted.device)  # may have to start
            return [self._core.load_network(wanted, network, replace=request.replace)]

        load = await when_loaded(partial(self._catalogue.load, name, begin_one))
        return self._info(load[0])

    async def unload_network(
        self, request: pb.UnloadNetworkRequest, _: Any
    ) -> pb.UnloadNetworkReply:
        name = self._networks.changeable(request.name)
        await self._catalogue.unload(partial(self._repository.unload, name, request.version))
        return pb.UnloadNetworkReply()

    async def set_traffic(self, request: pb.SetTrafficRequest, _: Any) -> pb.SetTrafficReply:
        name = self._networks.changeable(request.network)
        await asyncio.to_thread(self._repository.set_traffic, name, dict(request.shares))
        return pb.SetTrafficReply()

    async def set_shadow(self, request: pb.SetShadowRequest, _: Any) -> pb.SetShadowReply:
        name = self._networks.changeable(request.network)
        shadow = Shadow(request.version, request.device, request.percent)

        def begin() -> list[Future[NetworkEntry]]:
            load = self._repository.set_shadow(name, shadow)
            return [] if load is None else [load]

        await self._catalogue.load(copy_name(name), begin)
        return pb.SetShadowReply()

    async def list_repository(self, _request: Any, _: Any) -> pb.ListRepositoryReply:
        return await asyncio.to_thread(self._repository_list)

    async def list_networks(self, _request: Any, _: Any) -> pb.ListNetworksReply:
        return await asyncio.to_thread(self._network_list)  # there may be ten thousand

    async def get_network(self, request: pb.GetNetworkRequest, context: Any) -> pb.GetNetworkReply:
        return await when_loaded(partial(self._described, request), _deadline(context))

    async def query_network(self, request: pb.QueryNetworkRequest, _: Any) -> pb.QueryNetworkReply:
        network = self._network(request.model)

        def begin() -> Future[QueryResult]:
            query = self._load_request(request)
            self._core.plugin(query.device)  # may have to start
            return self._core.query_network(
                query.device, query.config, query.options, network, graph=request.graph
            )

        return convert.query_reply(await self._catalogue.query(begin))

    def _load_request(
        self, request: pb.LoadNetworkRequest | pb.QueryNetworkRequest, name: str = ""
    ) -> LoadRequest:
        """The request to load. A repository network's description fills in missing options."""
        if request.model.WhichOneof("source") == "repository":
            return self._repository.files.load_request(name, _reference(request))
        options, device = convert.network_options(request), request.device
        if request.model.WhichOneof("source") == "pipeline":
            device = device or DEVICE
        return LoadRequest(name, DeviceName.parse(device), dict(request.config), options)

    async def import_network(self, context: Any) -> pb.NetworkInfo:
        first = await context.read()
        if first is None:
            raise InvalidArgument("the stream ended before the options", field="options")
        part = parse_request(pb.ImportNetworkRequest, first)
        if part.WhichOneof("part") != "options":
            raise InvalidArgument("the first message must hold the options", field="options")
        options = part.options
        name = self._networks.new(options.name)
        about(options.name)

        async def chunks() -> AsyncIterator[bytes]:
            while (data := await context.read()) is not None:
                part = parse_request(pb.ImportNetworkRequest, data)
                if part.WhichOneof("part") != "chunk":
                    raise InvalidArgument(
                        "each message after the first must hold a chunk", field="chunk"
                    )
                yield part.chunk

        async with self._uploads.blob(chunks(), self._networks.owner) as blob:

            def begin() -> list[Future[NetworkEntry]]:  # verifying a gigabyte takes a second
                config, replace = dict(options.config), options.replace
                return [
                    self._core.import_network(name, options.device, config, blob, replace=replace)
                ]

            return self._info((await self._catalogue.load(name, begin))[0])

    async def export_network(
        self, request: pb.ExportNetworkRequest, _: Any
    ) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        name = self._networks.existing(request.name)
        pieces = await when_loaded(
            partial(asyncio.to_thread, self._core.export_network, name, request.version)
        )
        while (piece := await loop.run_in_executor(None, next, pieces, None)) is not None:
            yield pb.ExportNetworkReply(chunk=piece).SerializeToString()

    # -- metrics and configuration --

    async def get_metric(self, request: pb.GetMetricRequest, context: Any) -> pb.GetMetricReply:
        value = await when_loaded(
            partial(asyncio.to_thread, self._targets.metric, request), _deadline(context)
        )
        return pb.GetMetricReply(value=encode_parameter(value))

    async def get_config(self, request: pb.GetConfigRequest, context: Any) -> pb.GetConfigReply:
        value = await when_loaded(
            partial(asyncio.to_thread, self._targets.config, request), _deadline(context)
        )
        return pb.GetConfigReply(value=encode_parameter(value))

    async def set_config(self, request: pb.SetConfigRequest, _: Any) -> pb.SetConfigReply:
        await when_loaded(partial(asyncio.to_thread, self._targets.set_config, request))
        return pb.SetConfigReply()

    # -- devices --

    async def add_extension(self, request: pb.AddExtensionRequest, _: Any) -> pb.AddExtensionReply:
        self._networks.check_operator("an extension of a device")
        device = DeviceName.parse(request.device)
        operators = await asyncio.to_thread(self._core.add_extension, device, request.functions)
        return pb.AddExtensionReply(operators=operators)

    async def list_devices(self, _request: Any, _: Any) -> pb.ListDevicesReply:
        return await asyncio.to_thread(self._devices)

    def _devices(self) -> pb.ListDevicesReply:
        reply = pb.ListDevicesReply()
        plugins = self._core.plugins.plugins()
        reasons = self._core.plugins.reasons(full=self._networks.manages(""))
        for name in self._core.plugins.names():
            info = reply.devices.add(name=name, state=pb.DOWN)
            plugin = plugins.get(name)
            if plugin is not None:
                info.backend_version = plugin.backend_version
                with suppress(Unavailable):  # its backend does not start; its state says so
                    info.full_name = plugin.full_name or name
                    # A virtual device is one device without an id.
                    info.device_ids.extend(filter(None, plugin.device_ids()))
            event = self._core.states.get(name)
            if event is not None:
                info.state = _STATES[event.state]
                info.reason = reasons.get(name, event.reason)
        return reply

    # -- inside --

    async def _described(self, request: pb.GetNetworkRequest) -> pb.GetNetworkReply:
        """Describes a network in any state but cold, and its layers if it serves.

        Raises:
            NotFound: as `Networks.find`.
            NotLoaded: it is known or evicted.
        """
        entry = self._networks.find(request.name, request.version)
        try:
            entry = self._networks.acquire(request.name, entry.key.version)
        except NotLoaded:
            raise
        except HeadraceError:  # the entry says why
            return pb.GetNetworkReply(info=self._info(entry))
        try:
            executable = entry.executable
            assert executable is not None
            reply = pb.GetNetworkReply(info=self._info(entry))
            layers = await asyncio.to_thread(executable.layers)
            reply.layers.extend(convert.executable_layers(layers))
            reply.performance_counts.extend(convert.layer_profiles(executable.last_profile))
        finally:
            self._networks.release(entry)
        return reply

    def _repository_list(self) -> pb.ListRepositoryReply:
        seen = (
            row._replace(
                name=self._networks.shown(row.name),
                idle_seconds=row.idle_seconds if self._networks.manages(row.name) else None,
            )
            for row in self._repository.index()
            if self._networks.sees(row.name)
        )
        return pb.ListRepositoryReply(versions=map(convert.repository_version, seen))

    def _network_list(self) -> pb.ListNetworksReply:
        entries = self._networks.entries()
        return pb.ListNetworksReply(networks=[self._info(entry, listed=True) for entry in entries])

    def _info(self, entry: NetworkEntry, *, listed: bool = False) -> pb.NetworkInfo:
        info = convert.network_info(entry, self._networks.shown(entry.key.name), listed=listed)
        if entry.idle_seconds is not None and self._networks.manages(entry.key.name):
            info.idle_seconds = entry.idle_seconds
        return info

    def _network(self, source: pb.ModelSource, *, spooled: bool = False) -> Callable[[], Network]:
        kind = source.WhichOneof("source")
        if kind == "data":
            data = source.data
            return partial(self._read, CALLER.get().name, lambda: data, "", spooled)
        if kind == "digest":
            read = partial(self._uploads.read, source.digest, self._networks.owner)
            return partial(self._read, CALLER.get().name, read, source.digest, spooled)
        if kind == "repository":
            name = source.repository
            return lambda: self._repository.files.newest(name, spooled=spooled)
        if kind == "pipeline":
            return partial(self._pipeline, source.pipeline, self._networks.owner)
        raise InvalidArgument(
            "give data, a digest, a pipeline or a name in the repository", field="model"
        )

    def _pipeline(self, source: pb.Pipeline, owner: str) -> Network:
        """The pipeline that a client describes, with the models that it has sent."""
        description = parse_pipeline(source.description.encode())
        models = {
            step.model: self._uploads.read(source.models[step.model], owner)
            for step in description.steps
            if step.model in source.models
        }
        return network_of(description, models, self._core.limits)

    def _read(self, client: str, find: Callable[[], Buffer], digest: str, stays: bool) -> Network:
        """The network of a model that the client has sent.

        Args:
            digest: as clients give it; empty if the client gave the data.
            stays: whether it stays loaded.
        """
        data, limits = find(), self._core.limits
        spooled = len(data) <= LARGEST_KEPT  # a later load may use it

        def read() -> Network:
            if stays:
                return self._core.models.from_bytes(data)
            return Network.from_bytes(data, limits, spooled=spooled)

        digest = digest or f"sha256:{hashlib.sha256(data).hexdigest()}"
        return self._core.recent.read(client, digest, len(data), read)


def _reference(request: pb.LoadNetworkRequest | pb.QueryNetworkRequest) -> Reference:
    """A client's name and options for a network of the repository."""
    options = convert.network_options(request)
    return Reference(request.model.repository, request.device, dict(request.config), options)


def _deadline(context: Any) -> float | None:
    return deadline_after(0.0, context.time_remaining())
