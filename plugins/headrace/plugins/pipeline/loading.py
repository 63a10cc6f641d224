"""Finds or loads the networks of a pipeline's steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import onnx_ir as ir

from headrace.plugins.pipeline.executable_network import PipelineNetwork
from headrace.plugins.pipeline.running.request import LoadedStep
from headrace.plugins.pipeline.running.step import (
    NamedNetwork,
    OwnNetwork,
    StepNetwork,
    ports_of_network,
)
from headrace.runtime.config.device_name import DeviceName, resolve
from headrace.runtime.config.prefixes import checked_for
from headrace.runtime.config.schema import Configuration
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.device.load import Load, LoadResult
from headrace.runtime.device.services import LoadedEntry, LoadedNetworks, Services
from headrace.runtime.errors import FailedPrecondition, HeadraceError, InvalidArgument
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.intake.zip_maps import CLASSES, as_metadata
from headrace.runtime.loading import auto_batching
from headrace.runtime.loading.entry import full_name, is_network_name, is_version, owner_of
from headrace.runtime.network.network import Network, Port
from headrace.runtime.pipelines.description import DEVICE, PipelineStep, in_file
from headrace.runtime.pipelines.model import plan_in
from headrace.runtime.pipelines.ports import PipelinePorts, StepPorts, ports_of
from headrace.runtime.system.buffers import Buffer
from headrace.runtime.transform.options import NetworkOptions, Presentation
from headrace.runtime.virtual.parts_request import named


@dataclass(frozen=True, slots=True)
class FoundNetwork:
    """The network of a step.

    Attributes:
        names: the networks that it runs by name, at any depth.
        notes: what its load did that nobody asked for.
    """

    network: StepNetwork
    ports: StepPorts
    device: str
    names: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    from_cache: bool = False


def load_steps(load: Load, config: Configuration, services: Services) -> LoadResult:
    """Loads a pipeline: the networks that its steps name are there, their own models are loaded.

    Raises:
        InvalidModel, InvalidArgument: the pipeline is wrong. The error names step and tensor.
        NotFound, Unavailable, FailedPrecondition: the network of a step is not there.
        What the devices raise, naming the step.
    """
    plan, models = plan_in(load.network)
    found: dict[str, FoundNetwork] = {}
    try:
        for step in sorted(plan.steps, key=lambda each: bool(each.model)):  # loads take longer
            if load.token.error is not None:
                raise load.token.error
            with in_file(plan.file), _named(step):
                if step.network:
                    found[step.name] = _find(step, load, services)
                else:
                    found[step.name] = _load(step, models[step.name], load, services)
        ports = ports_of(plan, {name: each.ports for name, each in found.items()})
        network = PipelineNetwork(
            typed(load.network, ports),
            config,
            _steps(plan.steps, found, ports),
            frozenset().union(*(each.names for each in found.values())),
        )
    except BaseException:
        for each in found.values():
            each.network.close()
        raise
    notes = [
        f"step {step.name!r}: {note}" for step in plan.steps for note in found[step.name].notes
    ]
    from_cache = any(each.from_cache for each in found.values())
    return LoadResult(network, tuple(notes), from_cache=from_cache)


def device_of(step: PipelineStep, services: Services) -> DeviceName:
    """The device of a step's own model.

    Raises:
        InvalidArgument, NotFound, Unavailable: it is no device's name, or there is none.
    """
    device = DeviceName.parse(step.device or "CPU")
    if DEVICE in device.types():
        raise InvalidArgument("the model of a step is no pipeline; name a network", field="device")
    services.devices.plugin(device.type)
    return resolve(device, services.devices.available())


def load_of(step: PipelineStep, model: Buffer, device: DeviceName, token: CancelToken) -> Load:
    """The load of a step's own model."""
    return Load(
        Network.from_bytes(model),
        checked_for(step.config, device),
        NetworkOptions(members=device.members),
        token=token,
    )


@contextmanager
def entry_of(step: PipelineStep, owner: str, networks: LoadedNetworks) -> Iterator[LoadedEntry]:
    """The network that a step names, which stays loaded within the context.

    Args:
        owner: the tenant whose pipeline it is. Its own networks hide the shared ones.

    Raises:
        InvalidArgument: it is no network's name or version.
        NotFound, Unavailable, FailedPrecondition: as `NetworkRegistry.acquire`.
    """
    if not is_network_name(step.network) or (step.version and not is_version(step.version)):
        raise InvalidArgument(
            f"{step.network!r}{f':{step.version}' if step.version else ''} is no network's name "
            "with or without a version, as rec or rec:2"
        )
    name = networks.first([full_name(step.network, owner), step.network])
    entry = networks.acquire(name, step.version)
    try:
        yield entry
    finally:
        networks.release(entry)


def _find(step: PipelineStep, load: Load, services: Services) -> FoundNetwork:
    networks = services.networks
    assert networks is not None
    with entry_of(step, owner_of(load.name), networks) as entry:
        executable = entry.executable
        assert executable is not None
        names = {entry.key.name}
        if isinstance(executable.behind, PipelineNetwork):
            names |= executable.behind.names
        if load.name in names:
            raise InvalidArgument(f"the pipeline would run itself, by way of {step.network!r}")
        if executable.states:
            raise FailedPrecondition(
                f"network {step.network!r} keeps states for sequences, and a step belongs to none; "
                "load it without STATES, and give the pipeline STATES instead"
            )
        ports = _labelled(ports_of_network(executable), entry.record.request.presentation)
        network = NamedNetwork(networks, entry.key.name, step, ports, entry.key.generation)
        return FoundNetwork(network, ports, executable.place.device, frozenset(names))


def _labelled(ports: StepPorts, presentation: Presentation) -> StepPorts:
    """The ports of a network whose outputs have the labels that its server gives them."""
    outputs = (
        replace(port, classes=presentation.labels_of(port.name) or port.classes)
        for port in ports.outputs
    )
    return replace(ports, outputs=tuple(outputs))


def _load(step: PipelineStep, model: Buffer, load: Load, services: Services) -> FoundNetwork:
    device = device_of(step, services)

    def load_with(config: dict[str, str]) -> ExecutableNetwork:
        own = load_of(replace(step, config=config), model, device, load.token)
        return auto_batching.load(device, own, services.devices)

    assert services.with_responses is not None
    executable = services.with_responses(step.config, load_with)
    return FoundNetwork(
        OwnNetwork(executable),
        ports_of_network(executable),
        executable.place.device,
        notes=executable.notes,
        from_cache=executable.loaded_from_cache,
    )


def _steps(
    steps: Sequence[PipelineStep], found: Mapping[str, FoundNetwork], ports: PipelinePorts
) -> list[LoadedStep]:
    return [
        LoadedStep(
            number,
            step,
            found[step.name].network,
            found[step.name].device,
            {tensor: ports.tensors[tensor] for tensor in step.outputs},
            ports.rows.get(step.name),
        )
        for number, step in enumerate(steps, 1)
    ]


def typed(network: Network, ports: PipelinePorts) -> Network:
    """The network of the pipeline with the types of its tensors."""
    made = network.clone()
    graph = made.model.graph
    for value in (*graph.inputs, *(each for node in graph for each in node.outputs)):
        port = ports.tensors.get(value.name or "")
        if port is not None:
            value.type = _type_of(port)
            if classes := as_metadata(port.classes):
                value.metadata_props[CLASSES] = classes
            value.shape = None if port.shape is None else ir.Shape(port.shape)
    return made


def _type_of(port: Port) -> ir.TypeProtocol:
    tensor = ir.TensorType(port.dtype)
    kind: ir.TypeProtocol = ir.SequenceType(tensor) if port.kind == "sequence" else tensor
    return ir.OptionalType(kind) if port.optional else kind


@contextmanager
def _named(step: PipelineStep) -> Iterator[None]:
    """Has each error name the step."""
    try:
        yield
    except HeadraceError as error:
        of_network = {"step_network": step.network} if step.network else {}
        raise named(error, f"step {step.name!r}", step=step.name, **of_network) from error
