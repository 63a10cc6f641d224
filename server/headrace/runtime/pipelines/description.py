"""What a pipeline is: its steps, and the tensors between them. Read from ``pipeline.toml``.

inputs = ["image"]              # optional: the pipeline's inputs, in order

[[step]]
name = "rec"
network = "rec:2"               # of the server, or: model = "rec.onnx" in the folder
device = "CPU"                  # with model; config = {...} too
each = "crops"                  # one run a row of axis 0; {crops = [-1, 3]}: of two axes
when = "found"                  # a boolean scalar; without it the step gives nothing
inputs = {x = "crops"}          # the network's input = a tensor
outputs = {texts = "softmax_0"} # a tensor = the network's output

[outputs]
texts = "texts"                 # the pipeline's output = a tensor

Instead of a tensor, an input may get a constant: ``{value = [1.0], dtype = "FP32"}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from headrace.runtime.config.key import as_text
from headrace.runtime.config.table import check_table
from headrace.runtime.errors import HeadraceError, InvalidArgument, NotFound
from headrace.runtime.network.values import Array

FILE: Final = "pipeline.toml"
DEVICE: Final = "PIPELINE"
"""The device that pipelines are loaded onto."""

MAX_STEPS: Final = 256
_MAX_TENSORS: Final = 1024
"""The most inputs, and the most outputs, of one step or of the pipeline."""
_MAX_AXES: Final = 16
_MAX_ELEMENTS: Final = 1 << 16
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MAX_NAME: Final = 512

_DTYPES: Final = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
"""The types of constants, as the Open Inference Protocol calls them."""


@dataclass(frozen=True, slots=True, eq=False)
class StepConstant:
    """A value that a step gives its network in every request."""

    array: Array


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """
    Attributes:
        network, version: a network of the server; empty if the step has a model of its own. Without
            a version, each request goes to the version that serves then.
        model: the file of its own model.
        device, config: where its own model is loaded.
        inputs: the network's input to the tensor, or to the value, that it gets.
        outputs: the tensor that it makes to the network's output.
        each: the inputs of the network that get one row of their tensor in each of several runs.
            Empty if the network runs once.
        axes: for some of these inputs, the sizes of the first axes of their tensor, with None for
            any: a run gets what lies at one place of all these axes. Others have one such axis, and
            the shapes say whether a row keeps it.
        when: the boolean tensor that says whether the network runs at all; empty if it always does.
    """

    name: str
    network: str = ""
    version: str = ""
    model: str = ""
    device: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str | StepConstant] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    each: tuple[str, ...] = ()
    when: str = ""
    axes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it takes, each once."""
        tensors = [each for each in self.inputs.values() if isinstance(each, str)]
        return tuple(dict.fromkeys([*tensors, self.when] if self.when else tensors))


@dataclass(frozen=True, slots=True)
class PipelineDescription:
    """
    Attributes:
        steps: in any order.
        outputs: the pipeline's output to its tensor.
        inputs: the pipeline's inputs in their order. None for those that the steps need.
        file: the file that describes it, for errors.
    """

    steps: tuple[PipelineStep, ...]
    outputs: Mapping[str, str]
    inputs: tuple[str, ...] | None = None
    file: str = FILE


@contextmanager
def in_file(file: str) -> Iterator[None]:
    """Names the file of a pipeline in what is raised."""
    try:
        yield
    except HeadraceError as error:
        error.field = f"{file}: {error.field}" if error.field else file
        raise


def read_pipeline(facts: Mapping[str, Any], file: str = FILE) -> PipelineDescription:
    """The description that the tables of a file make.

    Args:
        facts: as TOML's parser returns them.
        file: the file's name, for errors.

    Raises:
        InvalidArgument, NotFound: a value is wrong, or a key is unknown. `field` names the step and
            the key.
    """
    with in_file(file):
        return _read(facts, file)


def _read(facts: Mapping[str, Any], file: str) -> PipelineDescription:
    check_table(facts, {"step", "outputs", "inputs"}, "")
    steps = facts.get("step", [])
    if not isinstance(steps, list) or not steps:
        raise InvalidArgument("a pipeline needs at least one [[step]]", field="step")
    if len(steps) > MAX_STEPS:
        raise InvalidArgument(
            f"has {len(steps)} steps; at most {MAX_STEPS} are allowed", field="step"
        )
    inputs = facts.get("inputs")
    if inputs is not None:
        inputs = _names(inputs, "inputs")
    outputs = _tensors(facts, "outputs", "")
    if not outputs:
        raise InvalidArgument(
            "a pipeline needs an output: add [outputs], name = tensor", field="outputs"
        )
    return PipelineDescription(
        tuple(_step(each, number) for number, each in enumerate(steps, 1)),
        outputs,
        inputs,
        file,
    )


def _step(facts: Any, number: int) -> PipelineStep:
    where = f"step {number}"
    known = {"name", "network", "model", "device", "config", "each", "when"}
    check_table(facts, known | {"inputs", "outputs"}, where)
    name = _text(facts, "name", where)
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name[:200]!r} is not a name of a step: 1 to 128 letters, digits, '_', '.' and "
            "'-', beginning with a letter, a digit or '_'",
            field=f"{where}: name",
        )
    where = f"step {name!r}"
    network, _, version = _text(facts, "network", where).partition(":")
    model = _text(facts, "model", where)
    if bool(network) == bool(model):
        raise InvalidArgument(
            "needs either network, a network of the server, or model, a file in the folder",
            field=where,
        )
    config = facts.get("config", {})
    if not isinstance(config, dict):
        raise InvalidArgument("must be a table", field=f"{where}: config")
    device = _text(facts, "device", where)
    if network and (device or config):
        raise InvalidArgument(
            f"network {network!r} is loaded already; device and config are for a model of the "
            "step's own",
            field=where,
        )
    inputs = _inputs(facts, where)
    split = _each(facts, inputs, where)
    return PipelineStep(
        name,
        network,
        version,
        model,
        device or ("CPU" if model else ""),
        {str(key): as_text(value) for key, value in config.items()},
        inputs,
        _tensors(facts, "outputs", where),
        tuple(split),
        _text(facts, "when", where),
        {name: axes for name, axes in split.items() if axes},
    )


def _text(facts: Mapping[str, Any], key: str, where: str) -> str:
    text = facts.get(key, "")
    if not isinstance(text, str) or len(text) > _MAX_NAME:
        raise InvalidArgument(
            f"must be text of at most {_MAX_NAME} characters", field=f"{where}: {key}"
        )
    return text


def _names(names: Any, where: str) -> tuple[str, ...]:
    if not isinstance(names, list) or len(names) > _MAX_TENSORS:
        raise InvalidArgument(f"must be a list of at most {_MAX_TENSORS} names", field=where)
    return tuple(_tensor(name, where) for name in names)


def _tensor(name: Any, where: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
        raise InvalidArgument(
            f"must be the name of a tensor, of at most {_MAX_NAME} characters", field=where
        )
    return name


def _tensors(facts: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    where = f"{where}: {key}" if where else key
    table = _table(facts, key, where)
    return {name: _tensor(each, f"{where}.{name}") for name, each in table.items()}


def _table(facts: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    table = facts.get(key, {})
    if not isinstance(table, dict):
        raise InvalidArgument("must be a table", field=where)
    if len(table) > _MAX_TENSORS:
        raise InvalidArgument(f"has more than {_MAX_TENSORS} entries", field=where)
    for name in table:
        _tensor(name, where)
    return table


def _inputs(facts: Mapping[str, Any], where: str) -> dict[str, str | StepConstant]:
    where = f"{where}: inputs"
    table = _table(facts, "inputs", where)
    return {
        name: _constant(each, f"{where}.{name}")
        if isinstance(each, dict)
        else _tensor(each, f"{where}.{name}")
        for name, each in table.items()
    }


def _constant(facts: Mapping[str, Any], where: str) -> StepConstant:
    check_table(facts, {"value", "dtype"}, where)
    dtype = facts.get("dtype")
    if dtype not in _DTYPES:
        raise NotFound.unknown("dtype", str(dtype or ""), _DTYPES, field=f"{where}.dtype")
    try:
        array: Array = np.array(facts.get("value"), _DTYPES[dtype])
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"is not a value of {dtype}: {error}", field=where) from None
    if dtype == "BYTES" and not all(isinstance(each, str) for each in array.flat):
        raise InvalidArgument("must be text, or lists of text", field=where)
    if "value" not in facts or array.size > _MAX_ELEMENTS:
        raise InvalidArgument(f"needs a value of at most {_MAX_ELEMENTS} elements", field=where)
    return StepConstant(array)


def _each(
    facts: Mapping[str, Any], inputs: Mapping[str, str | StepConstant], where: str
) -> dict[str, tuple[int | None, ...]]:
    """The inputs of the network that take a row of the tensors that `each` names, each with the
    sizes of the axes that it loses, if they are given."""
    said = facts.get("each", [])
    where = f"{where}: each"
    if not isinstance(said, dict):
        names = _names([said] if isinstance(said, str) else said, where)
        said = dict.fromkeys(names)
    split = {}
    for tensor, sizes in said.items():
        if tensor not in inputs.values():
            raise InvalidArgument(
                f"{tensor!r} is not among the tensors that the step's inputs take", field=where
            )
        axes = () if sizes is None else _axes(sizes, f"{where}.{tensor}")
        split.update({name: axes for name, each in inputs.items() if each == tensor})
    return split


def _axes(sizes: Any, where: str) -> tuple[int | None, ...]:
    if (
        not isinstance(sizes, list)
        or not 1 <= len(sizes) <= _MAX_AXES
        or not all(type(size) is int and size >= -1 for size in sizes)
    ):
        raise InvalidArgument(f"must be a list of 1 to {_MAX_AXES} sizes, as [-1, 3]", field=where)
    return tuple(None if size == -1 else size for size in sizes)
