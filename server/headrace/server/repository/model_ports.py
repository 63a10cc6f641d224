"""Compares the inputs and outputs of a ModelConfig with those of the model."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import InvalidArgument, did_you_mean
from headrace.runtime.network.network import Network, Port
from headrace.runtime.transform.options import LoadRequest
from headrace.server.repository.model_config import ModelSettings, config_at
from headrace.server.services.open_inference.datatypes import BYTES, datatype_of


def check_ports(network: Network, settings: ModelSettings, request: LoadRequest) -> Network:
    """Checks that a network matches the configuration.

    Args:
        request: how the network is loaded. Its options change some ports, which are not compared.

    Raises:
        InvalidArgument: an input or output is another one.
    """
    batched = request.presentation.max_batch_size > 0
    with config_at(settings.place):
        for kind, ports, expected, changed in (
            ("input", network.inputs, settings.ports.input, request.options.inputs),
            ("output", network.outputs, settings.ports.output, request.options.outputs),
        ):
            known = {port.name: port for port in ports}
            for said in expected:
                if said.name not in known:
                    near = did_you_mean(said.name[:200], known)
                    raise InvalidArgument(f"the model has no {kind} {said.name[:200]!r}{near}")
                if said.name not in changed:
                    _compare(kind, said, known[said.name], batched=batched)
    return network


def data_type(port: Port, kind: str) -> Any:
    """The configuration's name for a port's type.

    Raises:
        Unimplemented: the protocol has no such type.
    """
    datatype = datatype_of(port.dtype, f"{kind} {port.name!r}")
    return oip.DataType.Value("TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}")


def _compare(kind: str, said: Any, port: Port, *, batched: bool) -> None:
    known = port.dtype != ir.DataType.UNDEFINED  # a pipeline's follow from its networks
    if known and said.data_type and said.data_type != data_type(port, kind):
        name = oip.DataType.Name(data_type(port, kind))
        raise _mismatch(kind, port.name, f"is {name}, not {oip.DataType.Name(said.data_type)}")
    if kind == "input" and said.optional and not port.optional:
        raise _mismatch(kind, port.name, "has to be given; leave out optional")
    if port.shape is None or not (said.dims or said.HasField("reshape")):
        return
    shape = port.shape[1:] if batched else port.shape
    fits = len(said.dims) == len(shape) and all(
        -1 in (size, asked) or not isinstance(size, int) or size == asked
        for size, asked in zip(shape, said.dims, strict=True)
    )
    if not fits:
        sizes = [size if isinstance(size, int) else -1 for size in shape]
        raise _mismatch(kind, port.name, f"has dims {sizes}, not {list(said.dims)}")


def _mismatch(kind: str, name: str, message: str) -> InvalidArgument:
    return InvalidArgument(f"{kind} {name!r} of the model {message}")
