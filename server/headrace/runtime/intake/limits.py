"""Bounds on models from outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a model may be. There is one limit for each way in which a small file can need much
    memory.

    Attributes:
        model_bytes: the most bytes of the serialised model. The limit may exceed protobuf's 2 GiB,
            because the tensors' raw data is not parsed.
        structure_bytes: the most bytes of everything except the tensors' raw data, floats and
            doubles. Integers count with their size after parsing: one byte may become eight.
        value_bytes: the most bytes of one text, or of one list of numbers that is not a tensor's
            data. Protobuf parses it in one call, which stops every other thread.
        fields: the most protobuf fields. An empty message of two bytes takes two hundred bytes once
            parsed, so this limit bounds the memory of parsing: some 100 bytes a field, 400 MB at
            the default.
        nodes: the most nodes of the graph, its bodies and the functions, before inlining.
        inlined_nodes: the most nodes of the graph after each call is replaced by the function's
            nodes.
        ports: the most inputs, and the most outputs, of one node. The time to replace an input
            grows with their number.
        short_list: the most values of a list in an attribute that has one for each axis, input or
            output, as with most operators of ONNX's own domain.
        list_length: the most values of any other list in an attribute.
        texts: the most texts of all lists in attributes and of all tensors together. Libraries copy
            and free them in one call, which stops every other thread: some 40 ms for 350,000.
        tensors: the most initialisers and tensors in attributes.
        tensor_bytes: the most bytes of all tensors together, external data included.
        depth: how deep graphs may be nested in graphs.
        call_depth: how deep functions may call functions.
        name_length: the most characters of a name.
        rank: the most axes of a value; NumPy's arrays have the same limit.
    """

    model_bytes: int = 2**31
    structure_bytes: int = 256 * 2**20
    value_bytes: int = 16 * 2**20
    fields: int = 4_000_000
    nodes: int = 100_000
    inlined_nodes: int = 200_000
    ports: int = 4096
    short_list: int = 4096
    list_length: int = 1_000_000
    texts: int = 350_000
    tensors: int = 100_000
    tensor_bytes: int = 32 * 2**30
    depth: int = 16
    call_depth: int = 64
    name_length: int = 4096
    rank: int = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
