"""Tries a layer on a provider and on processors, and compares.

ONNX Runtime tells which layers a provider claims, not whether it computes them right: some
providers claim types that the device lacks, or round weights to 16 bits. So a claimed layer runs
once with numbers of its own types and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir

from headrace.plugins.cpu.backend import failures, session
from headrace.plugins.cpu.backend.session import Provider, SessionSettings
from headrace.runtime.errors import HeadraceError
from headrace.runtime.network.comparison import differing
from headrace.runtime.network.values import NUMPY_NUMBERS, Array

_MOST_BYTES: Final = 2**24
"""A layer with larger inputs is not run: it would take seconds on a slow device."""
_MOST_ELEMENTS: Final = 2**22
"""Nor is one with larger outputs: of two inputs of a million elements it may make a million times
a million."""
_UNKNOWN_SIZE: Final = 2
_RANGES: Final = ((0.1, 1.0), (-1.0, 1.0)) * 3
"""The ranges of the samples' random numbers. There are several, because one sample may not show
that a Min forgets an input."""
_REASON_LENGTH: Final = 300


def why_not(layer: bytes, provider: Provider) -> str | None:
    """Why the provider does not compute the layer as the processor does. None if it does, or if
    numbers of its types do not suit the layer on the processor either.

    Args:
        layer: a serialised model of one layer, which the provider claims.

    Raises:
        HeadraceError: as `session.open_bytes`.
    """
    graph = onnx.load_from_string(layer).graph
    samples = list(_samples(graph.input))
    if not samples:
        return None
    names = [port.name for port in graph.output]
    tried = session.open_bytes(layer, provider, SessionSettings(strict=True))
    if sum(map(_elements, tried.output_shapes())) > _MOST_ELEMENTS:
        return None
    try:
        processor = session.open_bytes(layer, Provider(), SessionSettings())
    except HeadraceError:
        return None  # it is the provider's alone
    for sample in samples:
        right = _run(processor, names, sample)
        if right is None or any(_has_nan(value) for value in right.values()):
            continue  # the layer is not made for such numbers
        try:
            found = dict(zip(names, tried.run(names, sample, session.run_options()), strict=True))
        except Exception as error:  # noqa: BLE001 - the binding's errors share no class
            return f"{provider.name} fails on it: {failures.readable(error)}"[:_REASON_LENGTH]
        if (how := differing(found, right, _precision(right))) is not None:
            return f"{provider.name} is wrong: {how}"[:_REASON_LENGTH]
    return None


def _run(
    opened: session.OnnxRuntimeSession, names: list[str], feed: Mapping[str, Array]
) -> dict[str, Any] | None:
    try:
        return dict(zip(names, opened.run(names, feed, session.run_options()), strict=True))
    except Exception:  # noqa: BLE001 - the binding's errors share no class
        return None


def _has_nan(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and bool(np.isnan(value).any())


def _precision(right: Mapping[str, Any]) -> str:
    """Many a provider computes float64 in float32."""
    is_double = any(getattr(value, "dtype", None) == np.float64 for value in right.values())
    return "f64" if is_double else "f32"


def _elements(shape: Sequence[int | str | None]) -> int:
    return math.prod(size if isinstance(size, int) else _UNKNOWN_SIZE for size in shape)


def _samples(ports: Sequence[onnx.ValueInfoProto]) -> Iterator[dict[str, Array]]:
    """Positive numbers, numbers of both signs, and zeros; integers are ones. Nothing if an input is
    no tensor of numbers that NumPy has, or the inputs are large."""
    ports_of: dict[str, tuple[list[int], np.dtype[Any]]] = {}
    for port in ports:
        tensor = port.type.tensor_type
        if not port.type.HasField("tensor_type") or tensor.elem_type not in NUMPY_NUMBERS:
            return
        sizes = [
            each.dim_value if each.HasField("dim_value") else _UNKNOWN_SIZE
            for each in tensor.shape.dim
        ]
        ports_of[port.name] = sizes, ir.DataType(tensor.elem_type).numpy()
    if sum(math.prod(sizes) * dtype.itemsize for sizes, dtype in ports_of.values()) > _MOST_BYTES:
        return
    random = np.random.default_rng(0)
    for least, most in (*_RANGES, (0.0, 0.0)):
        yield {
            name: random.uniform(least, most, size=sizes).astype(dtype)
            if dtype.kind == "f"
            else np.ones(sizes, dtype)
            for name, (sizes, dtype) in ports_of.items()
        }
