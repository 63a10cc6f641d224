"""The options that a caller may give when a network is loaded, and their JSON form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

import onnx_ir as ir

from headrace.runtime.config.device_name import DeviceName, Member
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.transform.warm_up import WarmUp

Origin: TypeAlias = Literal["client", "repository", "import"]


@dataclass(frozen=True, slots=True)
class InputOptions:
    """What a caller sends for an input. An option that is left out has the network's own value.

    Attributes:
        layout: the meaning of each axis of the caller's tensor, for example ``NHWC``.
        network_layout: the meaning of each axis of the network's own input. If only one layout is
            given, the other is the same.
        resize: ``LINEAR``, ``NEAREST`` or ``CUBIC`` (half-pixel centres, no antialiasing). With it
            the height and width of the caller's tensor may differ from the network's.
        mean: one value, or one for each channel, to subtract.
        scale: one value, or one for each channel, to divide by after the mean is subtracted.
        shape: the sizes of the caller's tensor, with None for any size. Its elements, in their
            order, are those of the network's own input. It goes with no layout and no resize.
    """

    dtype: ir.DataType | None = None
    layout: str = ""
    network_layout: str = ""
    resize: str = ""
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    shape: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a caller wants to receive an output. The options are as in `InputOptions`."""

    dtype: ir.DataType | None = None
    layout: str = ""
    network_layout: str = ""
    shape: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How the caller sees the network: preprocessing, types, layouts, placement.

    Attributes:
        affinities: layer name to device name, for a device that splits networks.
        members: the devices of a virtual device's list; empty for a physical one.
    """

    inputs: Mapping[str, InputOptions] = field(default_factory=dict)
    outputs: Mapping[str, OutputOptions] = field(default_factory=dict)
    affinities: Mapping[str, str] = field(default_factory=dict)
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """A network of the model repository, and the values that a client gave besides its name.

    Attributes:
        network: the network's name in the repository.
        device: the device; empty if the repository says which.
    """

    network: str
    device: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    options: NetworkOptions = field(default_factory=NetworkOptions)

    def to_json(self) -> str:
        return json.dumps(
            {
                "network": self.network,
                "device": self.device,
                "config": dict(self.config),
                "options": options_to_json(self.options),
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, text: str) -> Reference:
        """
        Raises:
            ValueError, KeyError, TypeError: the text is not what `to_json` writes.
        """
        facts = json.loads(text)
        options = options_from_json(facts["options"])
        return cls(str(facts["network"]), str(facts["device"]), dict(facts["config"]), options)


MAX_LABELS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Presentation:
    """What clients are told about a network besides its inputs and outputs.

    Attributes:
        max_batch_size: the most rows of a batch. The first dimension of every input and output is
            the batch. 0 if the network has no such dimension.
        labels: the labels of an output's classes, by the output's name. The labels under "" are for
            every output without its own.
        version_policy: which versions a client asked for, in Triton's form. Empty if it named no
            policy.
        priority: the priority of requests that bring none.
    """

    max_batch_size: int = 0
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    version_policy: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0

    def labels_of(self, output: str) -> tuple[str, ...]:
        return self.labels.get(output) or self.labels.get("") or ()

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Presentation:
        """The inverse of `asdict`; raises as `LoadRequest.from_json`."""
        labels = {name: tuple(label) for name, label in facts.get("labels", {}).items()}
        return cls(**{**facts, "labels": labels})


def read_labels(text: str, name: str) -> tuple[str, ...]:
    """Reads the labels from the text of a file, one label a line.

    Args:
        name: the name of the file, for the error.

    Raises:
        InvalidArgument: there are too many labels.
    """
    labels = tuple(line.strip() for line in text.splitlines())
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(f"has {len(labels)} lines; at most {MAX_LABELS} labels", field=name)
    return labels


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Everything about a load except the model. Together with the model it makes the network again.

    Attributes:
        reference: set if a client named the network by its place in the model repository. Then the
            network is made again from the reference and the repository's content at that time.
    """

    name: str
    device: DeviceName
    config: Mapping[str, str] = field(default_factory=dict)
    options: NetworkOptions = field(default_factory=NetworkOptions)
    origin: Origin = "client"
    reference: Reference | None = None
    version: str = "1"
    presentation: Presentation = field(default_factory=Presentation)
    warm_ups: tuple[WarmUp, ...] = ()

    def to_json(self) -> str:
        """The request as JSON, without the reference."""
        return json.dumps(
            {
                "name": self.name,
                "version": self.version,
                "device": str(self.device),
                "config": dict(self.config),
                "origin": self.origin,
                "presentation": asdict(self.presentation),
                "options": options_to_json(self.options),
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, text: str) -> LoadRequest:
        """
        Raises:
            ValueError, KeyError, TypeError, InvalidArgument: the text is not what `to_json`
                writes.
        """
        facts = json.loads(text)
        device = DeviceName.parse(facts["device"])
        options = options_from_json(facts["options"])
        return cls(
            facts["name"],
            device,
            dict(facts["config"]),
            options,
            facts["origin"],
            # Older servers wrote neither of these.
            version=str(facts.get("version", "1")),
            presentation=Presentation.from_json(facts.get("presentation", {})),
        )


def options_to_json(options: NetworkOptions) -> dict[str, Any]:
    """The options as values for JSON, without `members`, because the device's name has these."""
    return {
        "inputs": {name: _told(each) for name, each in options.inputs.items()},
        "outputs": {name: _told(each) for name, each in options.outputs.items()},
        "affinities": dict(options.affinities),
    }


def options_from_json(facts: Mapping[str, Any]) -> NetworkOptions:
    """The inverse of `options_to_json`; raises as `LoadRequest.from_json`."""
    inputs = {name: InputOptions(**_read(each)) for name, each in facts["inputs"].items()}
    outputs = {name: OutputOptions(**_read(each)) for name, each in facts["outputs"].items()}
    return NetworkOptions(inputs, outputs, dict(facts["affinities"]))


def _told(options: InputOptions | OutputOptions) -> dict[str, Any]:
    return {**asdict(options), "dtype": _dtype_name(options.dtype)}


def _read(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The options, whose tuples are lists in JSON. Older servers wrote no shape."""
    tuples = {name: tuple(given) for name, given in facts.items() if isinstance(given, list)}
    return {**facts, **tuples, "dtype": _dtype(facts["dtype"])}


def _dtype_name(dtype: ir.DataType | None) -> str | None:
    return dtype.name if dtype is not None else None


def _dtype(name: str | None) -> ir.DataType | None:
    return ir.DataType[name] if name is not None else None
