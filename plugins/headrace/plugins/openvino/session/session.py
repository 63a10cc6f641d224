"""OpenVINO's core: finds devices, and makes networks for them."""

from __future__ import annotations

import io
import logging
import platform
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import numpy as np
import onnx_ir as ir

from headrace.plugins.openvino.failures import NATIVE, load_failure
from headrace.plugins.openvino.graph.checkpoint import Checkpoints
from headrace.plugins.openvino.graph.empty_tensors import fold_empty
from headrace.plugins.openvino.graph.folding import fold_constants
from headrace.plugins.openvino.graph.fusion import name_operations
from headrace.plugins.openvino.graph.loops import protect_captured
from headrace.plugins.openvino.graph.passing import (
    keep_apart,
    part_rotations,
    refuse_free_branches,
)
from headrace.plugins.openvino.graph.patterns import keep_shapes
from headrace.plugins.openvino.graph.repairs import repair
from headrace.plugins.openvino.guards.guards import NO_LAYERS, add_constant_guards, add_guards
from headrace.plugins.openvino.library import FrontEndManager, openvino, operations
from headrace.plugins.openvino.limits.limits import SSE4
from headrace.plugins.openvino.limits.older_sets import kind
from headrace.plugins.openvino.session.deep_tensors import refuse_deep
from headrace.plugins.openvino.session.large_tensors import refuse_large
from headrace.plugins.openvino.session.shared_weights import separate_weights
from headrace.runtime.errors import InvalidModel
from headrace.runtime.intake import onnx_bytes
from headrace.runtime.system.buffers import joined
from headrace.runtime.system.scratch import ScratchFolder

_log = logging.getLogger(__name__)

_IN_FLOATS: Final = {"LP_TRANSFORMS_MODE": "NO"}
"""A property of processors: layers between dequantised values and a quantisation are computed in
the type of the network, and not in 8 bits. OpenVINO moves scales past layers for 8 bits and loses
them where a value has two readers or where a pool has pads. Without instructions for products of
uint8 and int8, it adds these in 16 bits, which overflow."""
_EXACT: Final = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    **_IN_FLOATS,
}
_FILED_BYTES: Final = 2**24
"""Weights of this size or larger are passed in a file."""


class Runtime:
    """OpenVINO's core and its reader of ONNX. Thread-safe, because the core is, and because each
    network is read by its own reader. A reader costs a fifth of a millisecond."""

    def __init__(self) -> None:
        self._core = openvino.Core()
        self._readers = FrontEndManager()
        # The search for devices loads drivers and takes half a second. It runs once, so a device
        # that is plugged in later is not found.
        self.devices = list(self._core.available_devices)

    def full_name(self, device: str) -> str:
        """The name that the device gives itself."""
        return str(self._core.get_property(device, "FULL_DEVICE_NAME"))

    def capabilities(self, device: str) -> tuple[str, ...]:
        """OPTIMIZATION_CAPABILITIES: the types that the device computes in, and other features. A
        processor without AVX also has SSE4, which OpenVINO itself does not tell."""
        known = tuple(self._core.get_property(device, "OPTIMIZATION_CAPABILITIES"))
        if device.partition(".")[0] == "CPU" and self._lacks_avx:
            return (*known, SSE4)
        return known

    @cached_property
    def _lacks_avx(self) -> bool:
        """Whether the processor has no AVX, or OpenVINO takes it for one without. OpenVINO's
        softsign of 1 is another number than 0.5 there."""
        one = openvino.op.Parameter(openvino.Type.f32, openvino.PartialShape([1]))
        model = openvino.Model([operations.softsign(one)], [one])
        compiled = self._core.compile_model(model, "CPU", _EXACT)
        (found,) = compiled([np.ones(1, np.float32)]).values()
        return bool(found != np.float32(0.5))

    def architecture(self, device: str) -> str:
        """The architecture. Compiled networks of the device depend on it and on OpenVINO's
        version."""
        try:
            architecture = self._core.get_property(device, "DEVICE_ARCHITECTURE")
        except RuntimeError:  # not every device has one
            architecture = ""
        return str(architecture) or platform.machine()

    def device_type(self, device: str) -> str:
        """DISCRETE, INTEGRATED or PROCESSOR. OpenVINO calls a processor integrated."""
        if device.partition(".")[0] == "CPU":
            return "PROCESSOR"
        try:
            return str(self._core.get_property(device, "DEVICE_TYPE").name)
        except RuntimeError:  # not every device has one
            return "INTEGRATED"

    def settable(self, device: str) -> frozenset[str]:
        """Names of the properties that can be set when a network is compiled for the device."""
        properties = self._core.get_property(device, "SUPPORTED_PROPERTIES")
        return frozenset(name for name, access in properties.items() if access == "RW")

    def stream_range(self, device: str) -> tuple[int, int]:
        """The fewest and the most streams that make sense on the device."""
        try:
            fewest, most = self._core.get_property(device, "RANGE_FOR_STREAMS")
        except RuntimeError:  # not every device has one
            return 1, 1
        return int(fewest), int(most)

    def convert(self, model: ir.Model, checkpoints: Checkpoints | None = None) -> openvino.Model:
        """OpenVINO's model of a network. Its operations are named after the layers that they came
        from.

        Args:
            checkpoints: the checkpoints of the network's loops, if it has any.

        Raises:
            HeadraceError: see `failures.load_failure`.
        """
        converted = self._read_model(model, checkpoints)
        name_operations(converted, model.graph)
        opsets = model.opset_imports
        layers = {each.name or "": kind(each, opsets.get(each.domain, 1)) for each in model.graph}
        return self._guarded(converted, layers)

    def _read_model(self, model: ir.Model, checkpoints: Checkpoints | None) -> openvino.Model:
        """Reads the network. Large weights are passed in a file, which OpenVINO maps. Weights that
        are passed as bytes are copied several times while no other Python thread runs, and
        protobuf limits them to 2 GiB."""
        if onnx_bytes.large_bytes(model) >= _FILED_BYTES:
            try:
                with ScratchFolder() as folder:
                    return self._read(str(_write(model, folder.path)), checkpoints)
            except OSError as error:
                _log.warning("no temporary file for a network's weights: %s", error)
        return self._read(io.BytesIO(joined(onnx_bytes.serialize(model))), checkpoints)

    def read(self, data: bytes) -> openvino.Model:
        """OpenVINO's model of a serialised network. Raises the same errors as `convert`."""
        return self._guarded(self._read(io.BytesIO(data), None))

    def _read(self, source: io.BytesIO | str, checkpoints: Checkpoints | None) -> openvino.Model:
        try:
            reader = self._readers.load_by_framework("onnx")
            if checkpoints is not None:
                reader.add_extension(checkpoints.extension())
            converted = reader.convert(reader.load(source))
            repair(converted)
            return converted
        except Exception as error:
            raise load_failure(error) from error

    def _guarded(
        self, model: openvino.Model, layers: Mapping[str, str] = NO_LAYERS
    ) -> openvino.Model:
        """
        Args:
            layers: the types of the layers by their names, as far as they are known.

        Raises:
            HeadraceError: see `failures.load_failure`.
        """
        try:
            refuse_large(model)
            fold_empty(model)
            fold_constants(model, partial(self._compute, layers))
            add_guards(model, layers)
            keep_shapes(model)
            protect_captured(model)
            part_rotations(model)
            separate_weights(model)
        except NATIVE as error:
            raise load_failure(error) from error
        return model

    def _compute(self, layers: Mapping[str, str], model: openvino.Model) -> list[openvino.Tensor]:
        """The outputs of a network without inputs.

        Raises:
            InvalidModel: a layer gets values that it does not take.
        """
        told = add_constant_guards(model, layers)
        part_rotations(model)
        request = self._core.compile_model(model, "CPU", _EXACT).create_infer_request()
        request.start_async()  # a synchronous run may lose errors: `RequestNetwork`
        request.wait()
        found = list(request.output_tensors)
        if told:
            holds = found.pop().data
            if holds.min() < 1:
                raise InvalidModel(f"the layer {told[holds.argmin()]}", field="model")
        return found

    def compile(
        self, model: openvino.Model, device: str, properties: Mapping[str, object]
    ) -> openvino.CompiledModel:
        """
        Raises:
            HeadraceError: see `failures.load_failure`.
        """
        given = _given(properties, device)
        try:
            refuse_free_branches(model)
            refuse_deep(model)
            compiled = self._core.compile_model(model, device, given)
            if keep_apart(model, compiled):
                refuse_deep(model)
                compiled = self._core.compile_model(model, device, given)
            return compiled
        except Exception as error:
            raise load_failure(error) from error

    def restore(
        self, native: bytes, device: str, properties: Mapping[str, object]
    ) -> openvino.CompiledModel:
        """Restores a network that was compiled and exported before.

        Raises:
            HeadraceError: see `failures.load_failure`.
        """
        try:
            return self._core.import_model(native, device, _given(properties, device))
        except Exception as error:
            raise load_failure(error) from error


def _given(properties: Mapping[str, object], device: str) -> dict[str, object]:
    """The properties to compile with for a device."""
    on_processor = device.partition(".")[0] == "CPU"
    return {**properties, **_IN_FLOATS} if on_processor else dict(properties)


def _write(model: ir.Model, folder: Path) -> Path:
    """Writes the network into the folder, and its large weights into a file beside it. Returns the
    path of the network."""
    data, weights = onnx_bytes.serialize_apart(model, "weights")
    with (folder / "weights").open("wb") as file:
        for each in weights:
            file.write(each)
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path
