"""A bad input, how each kind of them is sent, and what was said to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import status_pb2

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import ErrorDetails
from tests.integration.harness import (
    CALL_SECONDS,
    Server,
    Stream,
    details_of,
    infer_request,
    outcome_of,
)

INVALID, MISSING, EXISTS = "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS"
FAILED, EXHAUSTED = "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"
NETWORK = "sound"  # the network that is asked meanwhile
LOADED = ["endless", NETWORK]
CASE, ENDLESS = networks.add(), networks.endless()
MODEL = CASE.model.SerializeToString()

Send = Callable[[Server], Any]


@dataclass(frozen=True)
class Bad:
    """One bad input.

    Attributes:
        send: sends it; raises RpcError, or returns the status of a stream's result.
        status: expected.
        says: a pattern found in "field: message".
    """

    name: str
    send: Send
    status: str
    says: str = field(default="")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Load:
    """Loads the model onto the device."""

    request: pb.LoadNetworkRequest

    def __call__(self, server: Server) -> None:
        server.stub.LoadNetwork(self.request, timeout=CALL_SECONDS)

    def on(self, device: str) -> Load:
        request = pb.LoadNetworkRequest()
        request.CopyFrom(self.request)
        request.device = device
        return Load(request)


def load(
    data: bytes = MODEL,
    name: str = "bad",
    device: str = "TEMPLATE",
    model: pb.ModelSource | None = None,
    **fields: Any,
) -> Load:
    source = model or pb.ModelSource(data=data)
    return Load(pb.LoadNetworkRequest(name=name, model=source, device=device, **fields))


def infer(change: Callable[[pb.InferRequest], object], network: str = NETWORK) -> Send:
    def send(server: Server) -> None:
        request = infer_request(network, CASE.inputs)
        change(request)
        server.stub.Infer(request, timeout=CALL_SECONDS)

    return send


def tensor(**fields: Any) -> Send:
    """The input x with these fields changed."""

    def change(request: pb.InferRequest) -> None:
        x = request.inputs[0].tensor
        for name, value in fields.items():
            if name in ("shape", "strings"):
                del getattr(x, name)[:]
                getattr(x, name).extend(value)
            else:
                setattr(x, name, value)

    return infer(change)


def call(method: str, request: Any) -> Send:
    return lambda server: getattr(server.stub, method)(request, timeout=CALL_SECONDS)


def raw(method: str, data: bytes) -> Send:
    def send(server: Server) -> None:
        path = f"/headrace.v1.InferenceEngine/{method}"
        server.channel.unary_unary(path)(data, timeout=CALL_SECONDS)

    return send


def blob(change: Callable[[bytes], bytes]) -> Send:
    return lambda server: server.import_blob(change(server.export(NETWORK)), "bad")


def streamed(method: str, *messages: bytes) -> Send:
    def send(server: Server) -> None:
        path = f"/headrace.v1.InferenceEngine/{method}"
        server.channel.stream_unary(path)(iter(messages), timeout=CALL_SECONDS)

    return send


def on_a_stream(change: Callable[[pb.InferRequest], object]) -> Send:
    """A changed request behind one that runs until it is cancelled; its result is the first."""

    def send(server: Server) -> Any:
        request = infer_request(ENDLESS.name, ENDLESS.inputs, id="busy")
        stream = Stream(server.stub)
        stream.send(request)
        change(request)
        stream.send(request)
        refused = stream.next()
        stream.send(cancel=["busy"])
        stream.done()
        assert [outcome_of(each) for each in stream.results] == ["CANCELLED"]
        return refused.error

    return send


def imported(*parts: pb.ImportNetworkRequest) -> Send:
    return lambda server: server.stub.ImportNetwork(iter(parts), timeout=CALL_SECONDS)


def config(**entries: str) -> Send:
    target = pb.Target(device="TEMPLATE")
    return call("SetConfig", pb.SetConfigRequest(target=target, config=entries))


def refusal(bad: Bad, server: Server) -> ErrorDetails:
    try:
        status = bad.send(server)
    except grpc.RpcError as error:
        return details_of(error)
    assert isinstance(status, status_pb2.Status), "it was taken"
    return details_of(status)
