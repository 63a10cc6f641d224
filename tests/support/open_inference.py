"""Requests and results of the Open Inference Protocol, as a client without ours writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.network.values import Array
from headrace.server.services.open_inference.datatypes import (
    NUMPY_TYPES,
    datatype_of,
    decode_raw,
    encode_raw,
)

_KINDS = {bool: "bool_param", int: "int64_param", str: "string_param", bytes: "bytes_param"}


def parameters(values: Mapping[str, Any], kind: Any = oip.InferParameter) -> dict[str, Any]:
    """A map of parameters."""
    return {name: kind(**{_KINDS[type(value)]: value}) for name, value in values.items()}


def infer_request(model: str, inputs: Mapping[str, Any], **fields: Any) -> Any:
    """A request with raw contents."""
    return oip.ModelInferRequest(
        model_name=model,
        inputs=[
            oip.ModelInferRequest.InferInputTensor(
                name=name, datatype=datatype_of(value.dtype, name), shape=value.shape
            )
            for name, value in inputs.items()
        ],
        raw_input_contents=[
            bytes(encode_raw(value, datatype_of(value.dtype, name)))
            for name, value in inputs.items()
        ],
        **fields,
    )


def requested(name: str, **values: Any) -> Any:
    """An output that is asked for, with parameters."""
    return oip.ModelInferRequest.InferRequestedOutputTensor(
        name=name, parameters=parameters(values)
    )


def outputs_of(response: Any) -> dict[str, Array]:
    """The arrays in a response."""
    assert len(response.outputs) == len(response.raw_output_contents)
    assert all(each.datatype in NUMPY_TYPES for each in response.outputs)
    return {
        each.name: decode_raw(each.datatype, tuple(each.shape), raw)
        for each, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def with_external_weight(model: onnx.ModelProto, location: str, offset: int = 0) -> onnx.ModelProto:
    """The model z = x + y (float[2,3]), whose y is a weight in a file."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    del proto.graph.input[1]
    weight = proto.graph.initializer.add(name="y", dims=[2, 3], data_type=onnx.TensorProto.FLOAT)
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", str(offset)), ("length", "24")):
        weight.external_data.add(key=key, value=text)
    return proto
