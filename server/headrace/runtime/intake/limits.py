"""Bounds on models from outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a model may be: one limit for each way in which a small file can demand much
    memory.

    Attributes:
        model_bytes: of the serialised model. It may exceed protobuf's limit of 2 GiB, because the
            tensors' raw data is not parsed.
        structure_bytes: of everything except the tensors' raw data. Packed numbers count as large
            as they are once parsed: one byte may become eight.
        fields: protobuf fields. An empty message of two bytes takes two hundred once parsed, so
            this is what bounds the memory of parsing: some 100 bytes each, 400 MB at the default.
        nodes: of the graph, its bodies and the functions, as written.
        inlined_nodes: of the graph once every call is replaced by the function's nodes.
        tensors: initialisers and tensors in attributes.
        tensor_bytes: of all tensors together, external data included.
        depth: graphs within graphs.
        call_depth: functions that call functions.
        name_length: characters of any name.
        rank: axes of any value; as many as NumPy's arrays have.
    """

    model_bytes: int = 2**31
    structure_bytes: int = 256 * 2**20
    fields: int = 4_000_000
    nodes: int = 100_000
    inlined_nodes: int = 200_000
    tensors: int = 100_000
    tensor_bytes: int = 32 * 2**30
    depth: int = 16
    call_depth: int = 64
    name_length: int = 4096
    rank: int = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
