"""OpenVINO's core: finds devices, and makes networks for them."""

from __future__ import annotations

import io
import logging
import platform
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import onnx_ir as ir

from headrace.plugins.openvino.backend import integers, operations
from headrace.plugins.openvino.backend.failures import NATIVE, load_failure
from headrace.plugins.openvino.backend.folding import fold_constants
from headrace.plugins.openvino.backend.fusion import layer_of, name_operations
from headrace.plugins.openvino.backend.guards import add_guards
from headrace.plugins.openvino.backend.passing import keep_apart, part_rotations
from headrace.plugins.openvino.backend.repairs import repair
from headrace.plugins.openvino.claims.unclaimed import SSE4
from headrace.plugins.openvino.library import FrontEndManager, openvino
from headrace.plugins.openvino.library import operations as opset
from headrace.runtime.errors import UnsupportedLayer, UnsupportedLayers
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


class ConversionResult(NamedTuple):
    """
    Attributes:
        bound: the farthest from 0 that an integer of a request may be.
    """

    model: openvino.Model
    bound: int


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
        model = openvino.Model([opset.softsign(one)], [one])
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

    def convert(self, model: ir.Model) -> ConversionResult:
        """OpenVINO's model of a network whose inputs have known sizes. Its operations are named
        after the layers that they came from.

        Raises:
            UnsupportedLayers: OPENVINO does not run some layers with these sizes.
            HeadraceError: see `failures.load_failure`.
        """
        converted = self._read_model(model)
        try:
            repair(converted)
            name_operations(converted, model.graph)
            _settle(converted)
            fold_constants(converted, self._compute)
            _settle(converted)
            bound = _bound(converted, model)
            add_guards(converted, bound)
            part_rotations(converted)
        except NATIVE as error:
            raise load_failure(error) from error
        return ConversionResult(converted, bound)

    def _read_model(self, model: ir.Model) -> openvino.Model:
        """Reads the network. Large weights are passed in a file, which OpenVINO maps. Weights that
        are passed as bytes are copied several times while no other Python thread runs, and
        protobuf limits them to 2 GiB."""
        if onnx_bytes.large_bytes(model) >= _FILED_BYTES:
            try:
                with ScratchFolder() as folder:
                    return self._read(str(_write(model, folder.path)))
            except OSError as error:
                _log.warning("no temporary file for a network's weights: %s", error)
        return self._read(io.BytesIO(joined(onnx_bytes.serialize(model))))

    def _read(self, source: io.BytesIO | str) -> openvino.Model:
        try:
            reader = self._readers.load_by_framework("onnx")
            return reader.convert(reader.load(source))
        except Exception as error:
            raise load_failure(error) from error

    def _compute(self, model: openvino.Model) -> list[openvino.Tensor]:
        """The outputs of a network without inputs."""
        part_rotations(model)
        request = self._core.compile_model(model, "CPU", _EXACT).create_infer_request()
        request.start_async()  # a synchronous run may lose errors: `OpenVinoNetwork`
        request.wait()
        return list(request.output_tensors)

    def compile(
        self, model: openvino.Model, device: str, properties: Mapping[str, object]
    ) -> openvino.CompiledModel:
        """Compiles what `convert` has made.

        Raises:
            HeadraceError: see `failures.load_failure`.
        """
        compiled = self._compile(model, device, properties)
        return self._compile(model, device, properties) if keep_apart(model, compiled) else compiled

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

    def _compile(
        self, model: openvino.Model, device: str, properties: Mapping[str, object]
    ) -> openvino.CompiledModel:
        try:
            return self._core.compile_model(model, device, _given(properties, device))
        except Exception as error:
            raise load_failure(error) from error


def _given(properties: Mapping[str, object], device: str) -> dict[str, object]:
    """The properties to compile with for a device."""
    on_processor = device.partition(".")[0] == "CPU"
    return {**properties, **_IN_FLOATS} if on_processor else dict(properties)


def _bound(converted: openvino.Model, model: ir.Model) -> int:
    """The largest bound on a request's integers under which all operations are run.

    Raises:
        UnsupportedLayers: some are not run under any bound.
    """
    refused = [*operations.why_not(converted)]
    for bound in () if refused else integers.BOUNDS:
        refused = [*integers.why_not(converted, bound)]
        if not refused:
            return bound
    types = {node.name: node.op_type for node in model.graph}
    reasons: dict[str, str] = {}
    for operation, why in refused:
        reasons.setdefault(layer_of(operation.get_friendly_name()), why)
    known = {name: why for name, why in reasons.items() if name in types} or reasons
    layers = [UnsupportedLayer(name, types.get(name, ""), why) for name, why in known.items()]
    raise UnsupportedLayers("OPENVINO", layers)


def _write(model: ir.Model, folder: Path) -> Path:
    """Writes the network into the folder, and its large weights into a file beside it. Returns the
    path of the network."""
    data, weights = onnx_bytes.serialize_apart(model, "weights")
    with (folder / "weights").open("wb") as file:
        for weight in weights:
            file.write(weight)
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def _settle(model: openvino.Model) -> None:
    """Replaces the sizes that operations read by constants. OpenVINO's inference of shapes computes
    the sizes that follow from them, so that more of them are known each time."""
    model.validate_nodes_and_infer_types()
    while sum(map(_settled, model.get_ordered_ops())):
        model.validate_nodes_and_infer_types()


def _settled(operation: openvino.Node) -> bool:
    if operation.get_type_name() != "ShapeOf" or operation.get_input_partial_shape(0).is_dynamic:
        return False
    output = operation.output(0)
    readers, names = output.get_target_inputs(), output.get_names()
    if not readers:
        return False
    made = opset.constant(list(operation.get_input_shape(0)), output.get_element_type())
    output.set_names(set())
    made.output(0).set_names(names)
    for reader in readers:
        reader.replace_source_output(made.output(0))
    return True
