"""The client: it takes and returns NumPy arrays over gRPC. `headrace.client.aio` is for asyncio."""

from headrace.client.errors import Error
from headrace.client.infer_many import InferMany
from headrace.client.info import (
    Device,
    ExecutableLayer,
    Graph,
    LayerProfile,
    NetworkInfo,
    Port,
    QueryResult,
    RepositoryVersion,
    Subgraph,
    UnsupportedLayer,
)
from headrace.client.onnxruntime.session import InferenceSession
from headrace.client.options import InputOptions, OutputOptions
from headrace.client.outputs import Outputs, Timings
from headrace.client.request import InferRequest
from headrace.client.sessions.session import Session
from headrace.client.sync import Client, Network
from headrace.wire.errors import ErrorDetails
from headrace.wire.parameters import Range

__all__ = [
    "Client",
    "Device",
    "Error",
    "ErrorDetails",
    "ExecutableLayer",
    "Graph",
    "InferMany",
    "InferRequest",
    "InferenceSession",
    "InputOptions",
    "LayerProfile",
    "Network",
    "NetworkInfo",
    "OutputOptions",
    "Outputs",
    "Port",
    "QueryResult",
    "Range",
    "RepositoryVersion",
    "Session",
    "Subgraph",
    "Timings",
    "UnsupportedLayer",
]
