"""Reads the ensembles of Triton: a ``config.pbtxt`` in a folder without a model.

The file has protobuf's text form, and protobuf's own parser reads it. A field that has no meaning
here is refused by name, because its author would not get what it asks for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from google.protobuf import text_format

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import FailedPrecondition, InvalidArgument, Unimplemented
from headrace.runtime.network.network import Network
from headrace.runtime.pipelines.description import PipelineDescription, PipelineStep
from headrace.runtime.pipelines.model import plan_in

FILE: Final = "config.pbtxt"
PLATFORM: Final = "ensemble"
_NEWEST: Final = -1

_FIELDS: Final = ("name", "platform", "max_batch_size", "input", "output", "ensemble_scheduling")
_OF_INPUT: Final = ("name", "data_type", "dims", "format", "optional")
_OF_OUTPUT: Final = ("name", "data_type", "dims")
_OF_STEP: Final = ("model_name", "model_version", "input_map", "output_map")


def read_ensemble(text: bytes, name: str) -> tuple[PipelineDescription, int]:
    """The pipeline that an ensemble is, and its `max_batch_size`.

    Args:
        name: of the folder.

    Raises:
        InvalidArgument: the text is not a ModelConfig, or a value is wrong.
        FailedPrecondition: it describes no ensemble, and there is no model.
        Unimplemented: it sets a field that has no meaning here.
    """
    config = oip.ModelConfig()
    try:
        text_format.Parse(text, config)
    except (text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        why = str(error).partition("\n")[0][:300]
        raise InvalidArgument(f"is not a ModelConfig as text: {why}", field=FILE) from None
    if config.platform != PLATFORM and not config.HasField("ensemble_scheduling"):
        raise FailedPrecondition(
            "the folder has no model.onnx, and its config.pbtxt describes no ensemble", field=FILE
        )
    _only(config, _FIELDS, "")
    if config.name not in ("", name):
        raise _wrong("name", f"is {config.name[:200]!r}, and the folder is {name!r}")
    if config.max_batch_size < 0:
        raise _wrong("max_batch_size", f"is {config.max_batch_size}; give 0 or more")
    for tensor in config.input:
        _only(tensor, _OF_INPUT, "input.")
    for made in config.output:
        _only(made, _OF_OUTPUT, "output.")
    steps: list[PipelineStep] = []
    for said in config.ensemble_scheduling.step:
        _only(said, _OF_STEP, "ensemble_scheduling.step.")
        steps.append(_step(said, {step.name for step in steps}))
    if not steps:
        raise _wrong("ensemble_scheduling", "has no step")
    outputs = {each.name: each.name for each in config.output}
    if not outputs:
        raise _wrong("output", "is missing")
    inputs = tuple(each.name for each in config.input)
    return PipelineDescription(tuple(steps), outputs, inputs), config.max_batch_size


def _step(said: Any, taken: Collection[str]) -> PipelineStep:
    where = "ensemble_scheduling.step"
    if not said.model_name:
        raise _wrong(f"{where}.model_name", "is missing")
    if said.model_version < _NEWEST:
        raise _wrong(f"{where}.model_version", f"is {said.model_version}; give -1, or a version")
    version = str(said.model_version) if said.model_version > 0 else ""
    outputs: dict[str, str] = {}
    for output, tensor in sorted(said.output_map.items()):
        if tensor in outputs:
            raise _wrong(f"{where}.output_map", f"makes the tensor {tensor!r} twice")
        outputs[tensor] = output
    step = PipelineStep(
        said.model_name,
        said.model_name,
        version,
        inputs=dict(sorted(said.input_map.items())),
        outputs=outputs,
    )
    number = 2
    while step.name in taken:
        step = replace(step, name=f"{said.model_name}-{number}")
        number += 1
    return step


def ensemble_of(network: Network) -> oip.ModelEnsembling | None:
    """A pipeline as an ensemble; None if an ensemble cannot say what its steps do."""
    said = oip.ModelEnsembling()
    for step in plan_in(network)[0].steps:
        tensors = {name: each for name, each in step.inputs.items() if isinstance(each, str)}
        if step.model or step.each or step.when or len(tensors) < len(step.inputs):
            return None
        outputs = {output: tensor for tensor, output in step.outputs.items()}
        said.step.add(
            model_name=step.network,
            model_version=int(step.version or _NEWEST),
            input_map=tensors,
            output_map=outputs,
        )
    return said


def _only(message: Any, known: Collection[str], path: str) -> None:
    for each, _ in message.ListFields():
        if each.name not in known:
            raise Unimplemented(
                f"{path}{each.name} has no meaning for an ensemble here; leave it out", field=FILE
            )


def _wrong(name: str, message: str) -> InvalidArgument:
    return InvalidArgument(f"{name} {message}", field=FILE)
