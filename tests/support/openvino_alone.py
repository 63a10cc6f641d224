"""What OpenVINO makes of a network without our changes to it.

Tests whose names begin with `test_openvino_alone_` show with it that a rule is needed. `make
needed-repairs` runs them, and names those that find nothing wrong any more.
"""

from __future__ import annotations

import onnx

from headrace.plugins.openvino.library import openvino


def alone(model: onnx.ModelProto) -> openvino.CompiledModel:
    """What OpenVINO makes of it alone, in float32."""
    core = openvino.Core()
    read = core.read_model(model.SerializeToString())
    return core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def kinds(compiled: openvino.CompiledModel) -> list[str]:
    """The types of the compiled operations, in alphabetical order."""
    found = compiled.get_runtime_model().get_ops()
    return sorted(each.get_rt_info()["layerType"].astype(str) for each in found)
