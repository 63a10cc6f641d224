"""The networks under load, what is sent to them, and the answers that are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from headrace.testing import networks
from headrace.testing.case import Case, parse
from tests.support.stateful import SUM, SUM_STATES

CACHE = Path(__file__).parents[2] / ".cache"
MAGIKA = CACHE / "magika/model.onnx"
SILERO = CACHE / "small-zoo/faster_whisper/assets/silero_vad_v6.onnx"
LARGE = (40, 1024)
"""The shape of a tensor that the client puts into shared memory."""
TOLERANCE = 2e-4

Values = dict[str, Any]

DOUBLE = parse("double (float[n,m] x) => (float[n,m] y) { y = Add(x, x) }")


@dataclass(frozen=True)
class Target:
    """A network under load.

    Attributes:
        name: its name on the server.
        device: the device that it is loaded on.
        case: the model, and inputs that fit.
        requests: how many different requests are sent.
        killed: the devices whose loss the network's requests may feel.
        hidden: whether the network's device serves on without a lost one.
    """

    name: str
    device: str
    case: Case
    requests: int = 8
    config: Mapping[str, str] = field(default_factory=dict)
    affinities: Mapping[str, str] = field(default_factory=dict)

    @property
    def killed(self) -> tuple[str, ...]:
        if self.device.startswith(("MULTI", "AUTO")):
            return ()
        return tuple(each for each in ("OPENVINO", "OPENCL") if each in self.device)

    @property
    def worked_by(self) -> tuple[str, ...]:
        """All devices with a process of their own that may compute a request."""
        return tuple(each for each in ("OPENVINO", "OPENCL") if each in self.device)

    @cached_property
    def samples(self) -> list[tuple[Values, Values]]:
        """Requests with their right answers, as ONNX Runtime and ONNX's reference give them."""
        return [self._sample(seed) for seed in range(self.requests)]

    def _sample(self, seed: int) -> tuple[Values, Values]:
        dice = np.random.default_rng(seed)
        inputs = {
            name: dice.integers(0, 256, value.shape).astype(value.dtype)
            if value.dtype.kind == "i"
            else dice.standard_normal(value.shape).astype(value.dtype)
            for name, value in ((n, np.asarray(v)) for n, v in self.case.inputs.items())
        }
        model = self.case.model.SerializeToString()
        session = _session(model)
        names = [each.name for each in session.get_outputs()]
        return inputs, dict(zip(names, session.run(names, inputs), strict=True))


_SESSIONS: dict[bytes, onnxruntime.InferenceSession] = {}


def _session(model: bytes) -> onnxruntime.InferenceSession:
    if model not in _SESSIONS:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        _SESSIONS[model] = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
    return _SESSIONS[model]


def is_right(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether the outputs are the expected ones, within what precisions differ by."""
    return found.keys() == expected.keys() and all(
        np.shape(found[name]) == np.shape(value)
        and np.allclose(found[name], value, rtol=TOLERANCE, atol=TOLERANCE)
        for name, value in expected.items()
    )


def targets(devices: Sequence[str]) -> list[Target]:
    """The networks for a server with these devices; files that are not there are left out."""
    double = Case("double", DOUBLE, {"x": np.zeros((4, 16), np.float32)})
    large = Case("large", DOUBLE, {"x": np.zeros(LARGE, np.float32)})
    mlp, image = networks.mlp(), networks.image()
    split = {"dense1": "OPENVINO", "relu1": "OPENVINO", "dense2": "CPU", "relu2": "CPU"}
    summing = {"STATES": SUM_STATES}
    found = [
        Target("double-cpu", "CPU", double),
        Target("streamed-cpu", "CPU", double),
        Target("frozen-cpu", "CPU", double),
        Target("double-template", "TEMPLATE", double),
        Target("double-opencl", "OPENCL", double),
        Target("mlp-openvino", "OPENVINO", mlp),
        Target("mlp-hetero", "HETERO:OPENVINO,CPU", mlp, affinities=split),
        Target("mlp-multi", "MULTI:OPENVINO,CPU", mlp),
        Target("mlp-auto", "AUTO:OPENVINO,CPU", mlp),
        Target("image-batch", "BATCH:CPU(8)", image),
        Target("image-openvino", "OPENVINO", image),
        Target("large-cpu", "CPU", large, 4),
        Target("large-openvino", "OPENVINO", large, 4),
        Target("endless-cpu", "CPU", networks.endless(), 0),
        Target("fragile-cpu", "CPU", networks.fragile(), 0),
        Target("sum-cpu", "CPU", Case("sum", SUM, {}), 0, summing),
        Target("sum-openvino", "OPENVINO", Case("sum", SUM, {}), 0, summing),
    ]
    if MAGIKA.is_file():
        magika = Case("magika", onnx.load(MAGIKA), {"bytes": np.zeros((1, 2048), np.int32)})
        found += [Target(f"magika-{each.lower()}", each, magika) for each in ("CPU", "OPENVINO")]
    if SILERO.is_file():
        state = np.zeros((1, 1, 128), np.float32)
        frame = {"input": np.zeros((1, 576), np.float32), "h": state, "c": state}
        found.append(Target("silero-cpu", "CPU", Case("silero", onnx.load(SILERO), frame)))
    known = {each.partition(".")[0] for each in devices}
    return [
        each
        for each in found
        if {part.partition("(")[0] for part in each.device.replace(":", ",").split(",")} <= known
    ]
