"""OpenVINO alone, without CPU behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest

from headrace.plugins.openvino.backend.compilation import Compilation
from headrace.plugins.openvino.backend.compiler import Compiler
from headrace.plugins.openvino.sizes import key_of, of_key, sizing_inputs
from headrace.runtime.execution.job import Job
from headrace.runtime.network.values import Array, Value
from headrace.testing.case import network_of, parse

Compile: TypeAlias = Callable[..., Compilation]

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


@pytest.fixture
def compile_for(compiler: Compiler) -> Compile:
    """Compiles a network for requests as the one that is given."""

    def compile_(
        model: str | onnx.ModelProto,
        inputs: dict[str, Any],
        properties: dict[str, object] | None = None,
    ) -> Compilation:
        proto = parse(model) if isinstance(model, str) else model
        network = network_of(proto)
        key = key_of(network, inputs, sizing_inputs(network))
        assert key is not None
        given = {**EXACT, **(properties or {})}
        return compiler.compile(of_key(network, key, inputs), "CPU", given)

    return compile_


def run(
    compilation: Compilation,
    inputs: Mapping[str, Value],
    *names: str,
    room: dict[str, Array] | None = None,
) -> dict[str, Any]:
    """What OpenVINO answers."""
    job = Job(dict(inputs), lambda _: None, output_names=names or ("y",))
    job.room = room
    found = compilation.run(job, "OPENVINO.CPU")
    assert all(isinstance(value, np.ndarray) for value in found.values())
    return found
