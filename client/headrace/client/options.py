"""Plain dictionaries of options → the protocol's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from headrace.client.errors import did_you_mean, invalid
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire import dtypes

ConfigValue: TypeAlias = str | int | float | bool


class InputOptions(TypedDict, total=False):
    """How the input that the client sends differs from the input that the network takes.

    Attributes:
        dtype: the type that the client sends, as ``uint8``.
        layout: the layout that the client sends, as ``NHWC``.
        network_layout: the layout of the network's own input, as ``NCHW``.
        resize: LINEAR, NEAREST or CUBIC. The client may then send any height and width.
        mean: is subtracted; one value, or one for each channel.
        scale: divides, after the mean is subtracted; one value, or one for each channel.
    """

    dtype: Any
    layout: str
    network_layout: str
    resize: str
    mean: float | Sequence[float]
    scale: float | Sequence[float]


class OutputOptions(TypedDict, total=False):
    """How the output that the client wants differs from the output that the network gives."""

    dtype: Any
    layout: str
    network_layout: str


Preprocessing: TypeAlias = Mapping[str, InputOptions]
Postprocessing: TypeAlias = Mapping[str, OutputOptions]


def input_options(preprocessing: Preprocessing | None) -> dict[str, pb.InputOptions]:
    """The messages for `preprocessing`.

    Raises:
        InvalidArgument: an option is unknown, or a value has the wrong kind.
    """
    return _all_options(preprocessing, pb.InputOptions, "preprocessing")


def output_options(postprocessing: Postprocessing | None) -> dict[str, pb.OutputOptions]:
    """The messages for `postprocessing`; see `input_options`."""
    return _all_options(postprocessing, pb.OutputOptions, "postprocessing")


def config(values: Mapping[str, ConfigValue] | None) -> dict[str, str]:
    """The configuration in the protocol's form: values are text, and booleans are YES and NO.

    Raises:
        InvalidArgument: a value is neither text nor a number nor a boolean.
    """
    texts = {}
    untrusted: Mapping[str, object] = values or {}
    for key, value in untrusted.items():
        if isinstance(value, bool):
            texts[key] = "YES" if value else "NO"
        elif isinstance(value, str | int | float):
            texts[key] = str(value)
        else:
            kind = type(value).__name__
            raise invalid(f"config[{key!r}]", f"config[{key!r}] is a {kind}; pass text or a number")
    return texts


def _all_options(
    options: Mapping[str, Mapping[str, Any]] | None, message_type: Any, root: str
) -> dict[str, Any]:
    return {
        name: _options(fields, message_type, f"{root}[{name!r}]")
        for name, fields in (options or {}).items()
    }


def _options(fields: Mapping[str, Any], message_type: Any, path: str) -> Any:
    message = message_type()
    known = message_type.DESCRIPTOR.fields_by_name
    for key, value in fields.items():
        if key not in known:
            raise invalid(path, f"{path} has no option {key!r}{did_you_mean(key, known)}")
        try:
            if key == "dtype":
                message.dtype = (
                    dtypes.parse_name(value) if isinstance(value, str) else dtypes.number_of(value)
                )
            elif key in ("mean", "scale"):
                numbers = [value] if isinstance(value, int | float) else value
                getattr(message, key).extend(numbers)
            elif isinstance(value, str):
                setattr(message, key, value)
            else:
                raise TypeError(f"pass text, not {value!r}")
        except (TypeError, ValueError) as error:
            raise invalid(f"{path}.{key}", f"{path}.{key}: {error}") from None
    return message
