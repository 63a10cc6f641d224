"""Finds out the types and shapes of a pipeline's tensors from those of its networks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import onnx_ir as ir

from headrace.runtime.errors import InvalidArgument, did_you_mean
from headrace.runtime.network.network import Dimension, Port
from headrace.runtime.pipelines.description import PipelineStep, StepConstant, in_file
from headrace.runtime.pipelines.order import PipelinePlan


@dataclass(frozen=True, slots=True)
class StepPorts:
    """What the network of a step takes and gives.

    Attributes:
        defaults: the inputs that may be given.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    defaults: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """How a step with `each` takes its tensors apart and puts them together.

    Attributes:
        kept: the inputs whose rows keep their first axis, so that each has the size 1 there. The
            others lose it.
        joined: the tensors made of rows that have the first axis already. The others get it.
        elements: whether the rows are the elements of sequences. Then the results are sequences.
        axes: the inputs whose rows lose as many axes as said, and the sizes that these must have.
            The tensors made of rows get the axes of the input that loses the most.
    """

    kept: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    elements: bool = False
    axes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipelinePorts:
    """
    Attributes:
        tensors: the port of each tensor of the pipeline, by name.
        rows: for each step that has `each`, by name.
    """

    tensors: Mapping[str, Port]
    rows: Mapping[str, Rows]


_CONDITION: Final = Port("", ir.DataType.BOOL, None)  # of one element, in any number of axes


def ports_of(plan: PipelinePlan, networks: Mapping[str, StepPorts]) -> PipelinePorts:
    """The ports of a pipeline's tensors.

    Args:
        networks: what the network of each step takes and gives, by the step's name.

    Raises:
        InvalidArgument: a network has no such input or output, an input is missing, or types or
            shapes cannot fit. The error names the step and the tensor.
    """
    with in_file(plan.file):
        return _ports_of(plan, networks)


def _ports_of(plan: PipelinePlan, networks: Mapping[str, StepPorts]) -> PipelinePorts:
    tensors: dict[str, Port] = {}
    rows: dict[str, Rows] = {}
    for step in plan.steps:
        network = networks[step.name]
        takes = {port.name: port for port in (*network.inputs, *network.defaults)}
        _check_names(step, network, takes)
        kept = set()
        elements = not step.axes and _takes_elements(tensors, step)
        for name, given in step.inputs.items():
            port = takes[name]
            if isinstance(given, StepConstant):
                _check_constant(step, name, given, port)
                continue
            if name in step.each:
                if port.kind != "tensor" or port.optional:
                    raise _wrong(f"input {name!r} takes no plain tensor, so no rows", step)
                if elements:
                    port = replace(port, kind="sequence")
                elif name in step.axes:
                    port = _along(port, step.axes[name])
                else:
                    if _keeps_axis(tensors.get(given), port):
                        kept.add(name)
                    port = _of_rows(port, kept=name in kept)
            _meet(tensors, given, port, step, name)
        if step.when:
            _check_condition(tensors, step)
        makes = {port.name: port for port in network.outputs}
        joined = set()
        for tensor, name in step.outputs.items():
            port = replace(makes[name], name=tensor, layout="", classes=makes[name].classes)
            if step.each:
                if port.kind != "tensor" or port.optional:
                    raise _wrong(f"output {name!r} is no plain tensor, so no row", step)
                if elements:
                    port = replace(port, kind="sequence")
                elif step.axes:
                    port = _along(port, max(step.axes.values(), key=len))
                else:
                    if kept and _has_row(port):
                        joined.add(tensor)
                    port = _of_rows(port, kept=tensor in joined)
            elif step.when:
                port = _perhaps_empty(port, step, name)
            tensors[tensor] = _without_symbols(port)
        if step.each:
            rows[step.name] = Rows(frozenset(kept), frozenset(joined), elements, step.axes)
    return PipelinePorts(tensors, rows)


def check_same(step: PipelineStep, before: StepPorts, now: StepPorts) -> None:
    """Checks that a network that took the place of another one fits into the step, too.

    Raises:
        InvalidArgument: a port that the step uses is another one.
    """
    _check_names(step, now, {port.name: port for port in (*now.inputs, *now.defaults)})
    old = {port.name: port for port in (*before.inputs, *before.defaults)}
    new = {port.name: port for port in (*now.inputs, *now.defaults)}
    pairs = [(old[name], new[name]) for name in step.inputs]
    old = {port.name: port for port in before.outputs}
    new = {port.name: port for port in now.outputs}
    pairs += [(old[name], new[name]) for name in step.outputs.values()]
    for was, port in pairs:
        if why := _difference(was, port):
            raise _wrong(
                f"{port.name!r} of its network is another one by now: {why}; load the pipeline "
                "again",
                step,
            )


def _check_names(step: PipelineStep, network: StepPorts, takes: Mapping[str, Port]) -> None:
    for name in step.inputs:
        if name not in takes:
            raise _wrong(f"its network has no input {name!r}{did_you_mean(name, takes)}", step)
    for port in network.inputs:
        if port.name not in step.inputs and not port.optional:
            raise _wrong(f"input {port.name!r} of its network gets no tensor", step)
    makes = {port.name for port in network.outputs}
    for tensor, name in step.outputs.items():
        if name not in makes:
            raise _wrong(
                f"its network has no output {name!r} for the tensor {tensor!r}"
                f"{did_you_mean(name, makes)}",
                step,
            )


def _check_constant(step: PipelineStep, name: str, given: StepConstant, port: Port) -> None:
    array = given.array
    dtype = ir.DataType.STRING if array.dtype == object else ir.DataType.from_numpy(array.dtype)
    if why := _difference(Port(name, dtype, tuple(array.shape)), port):
        raise _wrong(f"the value of input {name!r} does not fit: {why}", step)


def _check_condition(tensors: dict[str, Port], step: PipelineStep) -> None:
    port = tensors.setdefault(step.when, replace(_CONDITION, name=step.when))
    one = port.shape is None or all(size in (1, None) for size in port.shape)
    if port.kind != "tensor" or port.dtype != ir.DataType.BOOL or not one:
        raise _wrong(f"the condition {step.when!r} must be one boolean, and is {_told(port)}", step)


def _meet(tensors: dict[str, Port], tensor: str, port: Port, step: PipelineStep, name: str) -> None:
    """Notes that a step takes a tensor as `port`."""
    wanted = _without_symbols(replace(port, name=tensor))
    there = tensors.get(tensor)
    if there is None:
        tensors[tensor] = wanted
        return
    if why := _difference(there, wanted):
        raise _wrong(f"the tensor {tensor!r} does not fit its input {name!r}: {why}", step)
    if there.shape is None or wanted.shape is None:
        shape = there.shape if wanted.shape is None else wanted.shape
    else:
        pairs = zip(there.shape, wanted.shape, strict=True)
        shape = tuple(ours if theirs is None else theirs for ours, theirs in pairs)
    tensors[tensor] = replace(there, shape=shape, optional=there.optional and wanted.optional)


def _difference(there: Port, wanted: Port) -> str:
    """Why a tensor of one port can never be one of another; empty if it can."""
    known = ir.DataType.UNDEFINED not in (there.dtype, wanted.dtype)
    other = there.kind != wanted.kind or (known and there.dtype != wanted.dtype)
    if not other and there.shape is not None and wanted.shape is not None:
        other = len(there.shape) != len(wanted.shape) or any(
            isinstance(a, int) and isinstance(b, int) and a != b
            for a, b in zip(there.shape, wanted.shape, strict=True)
        )
    return f"it is {_told(there)}, and {_told(wanted)} is needed" if other else ""


def _takes_elements(tensors: Mapping[str, Port], step: PipelineStep) -> bool:
    """Whether the step runs once for each element of sequences, and not for each row of tensors."""
    split = [given for name in step.each if isinstance(given := step.inputs[name], str)]
    kinds = {tensors[name].kind if name in tensors else "tensor" for name in split}
    if len(kinds) > 1:
        raise _wrong("each takes rows of tensors or elements of sequences, not both", step)
    return kinds == {"sequence"}


def _keeps_axis(tensor: Port | None, port: Port) -> bool:
    """Whether a row of the tensor keeps its first axis as the network's input."""
    if tensor is not None and tensor.shape is not None and port.shape is not None:
        return len(tensor.shape) == len(port.shape)
    return _has_row(port)


def _has_row(port: Port) -> bool:
    """Whether the first axis may have the size 1."""
    return (
        port.shape is not None
        and len(port.shape) > 0
        and (not isinstance(port.shape[0], int) or port.shape[0] == 1)
    )


def _of_rows(port: Port, *, kept: bool) -> Port:
    """The port of a tensor of any number of rows of `port`."""
    if port.shape is None:
        return port
    return replace(port, shape=(None, *(port.shape[1:] if kept else port.shape)))


def _along(port: Port, axes: tuple[int | None, ...]) -> Port:
    """The port of a tensor that has one of `port` at each place of these axes."""
    return port if port.shape is None else replace(port, shape=(*axes, *port.shape))


def _perhaps_empty(port: Port, step: PipelineStep, name: str) -> Port:
    """The port of a tensor, or of a sequence, that is empty if the step does not run."""
    if port.kind == "sequence" and not port.optional:
        return port
    if port.kind != "tensor" or port.optional or port.shape == ():
        raise _wrong(
            f"output {name!r} has no axis along which it could be empty when the step does not run",
            step,
        )
    return port if port.shape is None else replace(port, shape=(None, *port.shape[1:]))


def _without_symbols(port: Port) -> Port:
    """A symbol means the same size in one network alone."""
    if port.shape is None:
        return port
    sizes: Sequence[Dimension] = [size if isinstance(size, int) else None for size in port.shape]
    return replace(port, shape=tuple(sizes))


def _told(port: Port) -> str:
    shape = "" if port.shape is None else ["?" if each is None else each for each in port.shape]
    text = ", ".join(map(str, shape))
    kind = "a sequence of " if port.kind == "sequence" else ""
    return f"{kind}{port.dtype.name.lower()}{f'[{text}]' if port.shape is not None else ''}"


def _wrong(message: str, step: PipelineStep) -> InvalidArgument:
    return InvalidArgument(message, field=f"step {step.name!r}")
