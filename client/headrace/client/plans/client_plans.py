"""The plans behind the methods of `Client`. All raise the classes of `headrace.client.errors`.

`timeout` is in seconds and covers the whole method. None means the client's own timeout. For loads
and imports, None means no limit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.client import options, replies
from headrace.client.errors import invalid
from headrace.client.info import Device, NetworkInfo, QueryResult, RepositoryVersion
from headrace.client.model import (
    INLINE_BYTES,
    Model,
    ModelContent,
    Progress,
    network_name,
    read_bytes,
    read_model,
)
from headrace.client.options import ConfigValue, Postprocessing, Preprocessing
from headrace.client.pipeline import PipelineContent, is_pipeline, pipeline_name, read_pipeline
from headrace.client.plans import targets
from headrace.client.plans.plan import Budget, CallMethod, Plan
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.parameters import ParameterValue


def load_network(
    model: Model | None = None,
    device: str = "",
    *,
    config: Mapping[str, ConfigValue] | None = None,
    name: str = "",
    repository: str = "",
    preprocessing: Preprocessing | None = None,
    postprocessing: Postprocessing | None = None,
    affinities: Mapping[str, str] | None = None,
    replace: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Plan[NetworkInfo]:
    """Loads an ONNX network onto a device.

    Args:
        model: a path, bytes, or anything with SerializeToString. Large ones are uploaded in chunks.
            External data of a model at a path is sent along; it has to lie in the model's folder.
            The path of a ``pipeline.toml`` is a pipeline, as for `load_pipeline`.
        device: for example ``CPU``, ``CPU.0`` or ``HETERO:OPENCL,CPU``. The default is CPU, or for
            a model of the repository the device that its folder names.
        config: configuration keys for this network.
        name: the network's name. The default is the file's name without its suffix, or its name in
            the repository. You must pass it if there is neither.
        repository: instead of a model, the name of one in the server's model repository.
        preprocessing: per input, how the client's input differs from the network's own; see
            `InputOptions`.
        postprocessing: per output, how the client wants it; see `OutputOptions`.
        affinities: layer → device, for HETERO.
        replace: take the place of a loaded network of this name, without a gap. With `repository`
            and no other argument: load its versions again, by its policy.
        progress: called with bytes sent and bytes in all while a large model is uploaded, on
            another thread.

    Raises:
        InvalidArgument: the model or an option is wrong.
        NotFound: the device, the configuration key or the repository's model does not exist.
        AlreadyExists: the name is in use.
        FailedPrecondition: the device lacks layers; the message lists all of them.
    """
    budget = Budget.of_load(timeout)
    content = _content(model, repository)
    if content is not None:
        name = pipeline_name(name, model) if is_pipeline(model) else network_name(name, model)
    source = yield from _source(content, repository, budget, progress)
    request = pb.LoadNetworkRequest(
        name=name,
        model=source,
        device=device or _default_device(content),
        config=options.config(config),
        inputs=options.input_options(preprocessing),
        outputs=options.output_options(postprocessing),
        affinities=affinities,
        replace=replace,
    )
    reply: pb.NetworkInfo = yield CallMethod("LoadNetwork", request, budget.left_seconds)
    return replies.network_info(reply)


def load_pipeline(
    pipeline: str | os.PathLike[str],
    *,
    name: str = "",
    config: Mapping[str, ConfigValue] | None = None,
    replace: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Plan[NetworkInfo]:
    """Loads several networks that run behind one name.

    Args:
        pipeline: the path of a ``pipeline.toml``, or its text, of more than one line. Models that
            its steps name are sent along; they have to lie in the folder of the file, or for a text
            in the working directory.
        name: the pipeline's name. The default is the file's name without its suffix, or the name of
            its folder if it is called ``pipeline.toml``. You must pass it with a text.
        config: configuration keys for PIPELINE.
        replace, progress: as for `load_network`.

    Raises:
        InvalidArgument: the description or a model is wrong. The error names the step and the
            tensor.
        NotFound: the network, the device or the key of a step does not exist.
        AlreadyExists: the name is in use.
        FailedPrecondition: the device of a step lacks layers of its model.
    """
    budget = Budget.of_load(timeout)
    content = read_pipeline(pipeline)
    name = pipeline_name(name, pipeline)
    source = yield from _source(content, "", budget, progress)
    request = pb.LoadNetworkRequest(
        name=name, model=source, config=options.config(config), replace=replace
    )
    reply: pb.NetworkInfo = yield CallMethod("LoadNetwork", request, budget.left_seconds)
    return replies.network_info(reply)


def query_network(
    model: Model | None = None,
    device: str = "",
    *,
    config: Mapping[str, ConfigValue] | None = None,
    repository: str = "",
    preprocessing: Preprocessing | None = None,
    postprocessing: Postprocessing | None = None,
    affinities: Mapping[str, str] | None = None,
    graph: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Plan[QueryResult]:
    """Says layer by layer whether a device would run a network; loads nothing.

    The arguments are those of `load_network`; unknown configuration keys are ignored.

    Args:
        graph: whether the result also has the network's graph.
    """
    budget = Budget.of_load(timeout)
    content = _content(model, repository)
    source = yield from _source(content, repository, budget, progress)
    request = pb.QueryNetworkRequest(
        model=source,
        device=device or _default_device(content),
        config=options.config(config),
        inputs=options.input_options(preprocessing),
        outputs=options.output_options(postprocessing),
        affinities=affinities,
        graph=graph,
    )
    reply: pb.QueryNetworkReply = yield CallMethod("QueryNetwork", request, budget.left_seconds)
    return replies.query_result(reply)


def import_network(
    blob: bytes | bytearray | memoryview | str | os.PathLike[str],
    device: str = "",
    *,
    name: str = "",
    config: Mapping[str, ConfigValue] | None = None,
    replace: bool = False,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Plan[NetworkInfo]:
    """Loads an exported network.

    Args:
        blob: what `Network.export` returned, or the path of a file with it.
        device: the default is the device that it was exported from.
        config: overrides the exported configuration.
        name: the network's name. The default is the file's name without its suffix. You must pass
            it with bytes.
        replace, progress: as for `load_network`.

    Raises:
        InvalidArgument: the blob is damaged, or not for this server or device.
        AlreadyExists: the name is in use.
    """
    name = network_name(name, blob)
    content = ModelContent([read_bytes(blob, "blob")])
    import_options = pb.ImportOptions(
        name=name, device=device, config=options.config(config), replace=replace
    )

    def messages() -> Iterator[pb.ImportNetworkRequest]:
        yield pb.ImportNetworkRequest(options=import_options)
        for chunk in content.chunks(progress):
            yield pb.ImportNetworkRequest(chunk=chunk)

    budget = Budget.of_load(timeout)
    reply: pb.NetworkInfo = yield CallMethod("ImportNetwork", messages(), budget.left_seconds)
    return replies.network_info(reply)


def network(name: str, version: str = "", *, timeout: float | None = None) -> Plan[NetworkInfo]:
    """A network that is already loaded, or one version of it."""
    request = pb.GetNetworkRequest(name=name, version=version)
    reply: pb.GetNetworkReply = yield CallMethod("GetNetwork", request, timeout)
    return replies.network_info(reply.info)


def repository(*, timeout: float | None = None) -> Plan[list[RepositoryVersion]]:
    """What the server's model repository holds and what is loaded, version by version."""
    reply: pb.ListRepositoryReply = yield CallMethod(
        "ListRepository", pb.ListRepositoryRequest(), timeout
    )
    return [replies.repository_version(version) for version in reply.versions]


def networks(*, timeout: float | None = None) -> Plan[list[NetworkInfo]]:
    """All versions of all networks of the server, including loading and failed ones."""
    reply: pb.ListNetworksReply = yield CallMethod(
        "ListNetworks", pb.ListNetworksRequest(), timeout
    )
    return [replies.network_info(network) for network in reply.networks]


def devices(*, timeout: float | None = None) -> Plan[list[Device]]:
    """Every device of the server with its state, and why a failed one failed."""
    reply: pb.ListDevicesReply = yield CallMethod("ListDevices", pb.ListDevicesRequest(), timeout)
    return [replies.device(device) for device in reply.devices]


def status(match: str = "", *, timeout: float | None = None) -> Plan[dict[str, Any]]:
    """The devices, networks and recent errors of the server, as its status page shows them.

    All numbers count from the server's start.

    Args:
        match: lists only networks whose names contain this.
    """
    reply: pb.GetStatusReply = yield CallMethod(
        "GetStatus", pb.GetStatusRequest(match=match), timeout
    )
    return replies.status(reply)


def get_metric(
    device: str,
    name: str,
    *,
    options: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Plan[ParameterValue]:
    """A device's metric, with its own type.

    Args:
        options: for example ``{"DEVICE_ID": "1"}``.

    Raises:
        NotFound: no such device or metric.
    """
    return (yield from targets.get_metric(pb.Target(device=device), name, options, timeout))


def get_config(
    device: str,
    name: str,
    *,
    options: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Plan[ParameterValue]:
    """The value of a device's configuration key; see `get_metric`."""
    return (yield from targets.get_config(pb.Target(device=device), name, options, timeout))


def set_config(
    device: str, config: Mapping[str, ConfigValue], *, timeout: float | None = None
) -> Plan[None]:
    """Sets a device's configuration, all keys or none.

    Raises:
        NotFound: no such device or key.
        InvalidArgument: a key does not take its value.
    """
    yield from targets.set_config(pb.Target(device=device), config, timeout)


def set_shadow(
    name: str,
    version: str | int | None = None,
    device: str | None = None,
    percent: int = 5,
    *,
    timeout: float | None = None,
) -> Plan[None]:
    """Gives a share of a network's requests, after their replies, also to another version or
    device, and compares the answers. The server's metrics count what differs.

    With a device, returns when the network is loaded there. A server with a state directory keeps
    the shadow over a restart.

    Args:
        name: the network's name.
        version, device: where the requests go, one of them.
        percent: of the requests. 0 ends the shadow.

    Raises:
        InvalidArgument: neither or both of version and device are given, or the share is no
            percentage.
        NotFound: no network has this name, or it lacks the version, or there is no such device.
        FailedPrecondition: the network keeps states or computes with random numbers, or the device
            lacks layers; the message lists all of them.
    """
    if not isinstance(percent, int) or abs(percent) >= 2**31:
        raise invalid("percent", f"percent is {percent!r}; pass a whole number")
    request = pb.SetShadowRequest(
        network=name,
        version="" if version is None else str(version),
        device=device or "",
        percent=percent,
    )
    yield CallMethod("SetShadow", request, math.inf if device and timeout is None else timeout)


def add_extension(
    device: str, functions: Model, *, timeout: float | None = None
) -> Plan[list[str]]:
    """Gives a device custom operators.

    Args:
        functions: an ONNX model whose local functions are the operators; its graph is ignored.

    Returns:
        The operators' names, as ``domain::name``.

    Raises:
        Unimplemented: the device takes no extensions.
    """
    request = pb.AddExtensionRequest(device=device, functions=read_model(functions).read())
    reply: pb.AddExtensionReply = yield CallMethod("AddExtension", request, timeout)
    return list(reply.operators)


def _content(model: Model | None, repository: str) -> ModelContent | PipelineContent | None:
    """What the client sends of the model, or None if the server has it in its repository."""
    if (model is None) == (not repository):
        raise invalid("model", "pass either a model or repository='name'")
    if is_pipeline(model):
        return read_pipeline(model)
    return read_model(model) if model is not None else None


def _default_device(content: ModelContent | PipelineContent | None) -> str:
    """The device that a load asks for if its caller names none; "" if the server knows it."""
    return "CPU" if isinstance(content, ModelContent) else ""


def _source(
    content: ModelContent | PipelineContent | None,
    repository: str,
    budget: Budget,
    progress: Progress | None,
) -> Plan[pb.ModelSource]:
    """Where the server finds the model. Uploads the model if it is large."""
    if content is None:
        return pb.ModelSource(repository=repository)
    if isinstance(content, PipelineContent):
        pipeline = pb.Pipeline(description=content.text)
        for file, model in content.models.items():
            pipeline.models[file] = yield from _uploaded(model, budget, progress)
        return pb.ModelSource(pipeline=pipeline)
    if content.size <= INLINE_BYTES:
        return pb.ModelSource(data=content.read())
    return pb.ModelSource(digest=(yield from _uploaded(content, budget, progress)))


def _uploaded(content: ModelContent, budget: Budget, progress: Progress | None) -> Plan[str]:
    """Uploads a model, and returns its digest."""
    messages = (pb.UploadModelRequest(chunk=chunk) for chunk in content.chunks(progress))
    reply: pb.UploadModelReply = yield CallMethod("UploadModel", messages, budget.left_seconds)
    if content.error is not None:
        raise content.error
    return str(reply.digest)
