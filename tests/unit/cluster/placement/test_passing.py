"""What goes before the handlers of methods, and passes calls on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from headrace.cluster.members import Member
from headrace.cluster.placement.directory import Directory
from headrace.cluster.placement.forwarding import PASSED_ON, Forwarding, _metadata
from headrace.cluster.placement.methods import Passing, _sequence
from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import Unauthenticated, Unavailable
from headrace.server.access.identity import ANONYMOUS, CALLER, STRANGER, Identity, Role
from headrace.server.access.refusal import require
from headrace.server.logs import CURRENT_REQUEST
from headrace.server.services.methods import Kind, Method
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import REQUEST_ID_KEY

CONTEXT = SimpleNamespace(invocation_metadata=tuple)


class Others(Forwarding):
    """The other replicas. The live ones answer with their own networks."""

    def __init__(self) -> None:
        super().__init__(Directory("own"))
        self.directory.here = SimpleNamespace(  # type: ignore[assignment]
            serving=lambda _: False, has=lambda _: False
        )
        self.directory.place("there", {"holders": ["live"]})
        self.directory.place("gone", {"holders": ["dead"]})
        self.directory.meet([Member("live", "localhost:1"), Member("own", "localhost:2")])

    async def unary(self, name: str, path: str, data: bytes, *rest: Any, **how: Any) -> bytes:
        if name != "there":
            return await super().unary(name, path, data, *rest, **how)
        if path.endswith("RepositoryIndex"):
            index = oip.RepositoryIndexResponse()
            index.models.add(name="there", state="READY")
            return bytes(index.SerializeToString())
        info = pb.NetworkInfo(name="there", state=pb.READY)
        return bytes(pb.ListNetworksReply(networks=[info]).SerializeToString())


def ask(name: str, message: Any, reply: Any, caller: Identity = ANONYMOUS) -> Any:
    """The reply to a call of a method whose handler returns or raises `reply`."""

    async def handler(*_: Any) -> Any:
        if name == "Check":
            require(Role.READ)
        return reply

    async def call() -> Any:
        CALLER.set(caller)
        passing = Passing(Others())
        passing.networks = SimpleNamespace(  # type: ignore[assignment]
            names=lambda name: (name,), sees=lambda _: True, shown=str, owner=""
        )
        lane: Any = None
        method = Method("s", name, Kind.UNARY, type(message), handler, lane, Role.READ)
        return await passing([method])[0].handler(message, CONTEXT)

    return asyncio.run(call())


def test_a_list_has_the_networks_whose_replicas_were_lost_and_says_so() -> None:
    own = pb.NetworkInfo(name="own", state=pb.READY)
    reply = ask("ListNetworks", pb.ListNetworksRequest(), pb.ListNetworksReply(networks=[own]))
    found = {each.name: (each.state, each.reason, list(each.replicas)) for each in reply.networks}
    lost = "no replica has it at the moment"
    assert found == {
        "own": (pb.READY, "", []),
        "there": (pb.READY, "", ["live"]),
        "gone": (pb.LOADING, lost, ["dead"]),
    }


@pytest.mark.parametrize("ready", [False, True])
def test_so_has_the_index_of_the_open_protocol_unless_only_those_that_serve_are_wanted(
    ready: bool,
) -> None:
    message = oip.RepositoryIndexRequest(ready=ready)
    reply = ask("RepositoryIndex", message, oip.RepositoryIndexResponse())
    found = {each.name: each.state for each in reply.models}
    assert found == {"there": "READY"} | ({} if ready else {"gone": "LOADING"})


def test_a_stranger_does_not_learn_which_networks_there_are() -> None:
    message = health_pb2.HealthCheckRequest(service="gone")
    with pytest.raises(Unavailable):
        ask("Check", message, None)
    with pytest.raises(Unauthenticated):
        ask("Check", message, None, STRANGER)


@pytest.mark.parametrize(
    ("parameter", "sequence"),
    [
        (oip.InferParameter(), ""),
        (oip.InferParameter(int64_param=5), "5"),
        (oip.InferParameter(string_param="s"), "s"),
    ],
)
def test_the_sequence_of_a_request_is_found(parameter: oip.InferParameter, sequence: str) -> None:
    message = oip.ModelInferRequest(model_name="m", parameters={"sequence_id": parameter})
    assert _sequence(message.SerializeToString()) == sequence


def test_the_channel_to_a_replica_that_has_gone_is_closed() -> None:
    async def run() -> None:
        forwarding = Others()
        old = forwarding._channel("localhost:1")
        forwarding.directory.meet([Member("new", "localhost:3")])
        new = forwarding._channel("localhost:3")
        await asyncio.gather(*forwarding._closing)
        assert forwarding._channels == {"localhost:3": new}
        assert old.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        await forwarding.close()

    asyncio.run(run())


def test_metadata_that_grpc_would_not_send_are_left_out() -> None:
    given = [("team", "a"), ("empty", ""), ("some-bin", b"\xff"), ("bad", b"\xff"), ("odd", "\x7f")]
    given += [("grpc-timeout", "1S"), (PASSED_ON, "7"), ("more", "ü")]
    context = SimpleNamespace(invocation_metadata=lambda: given)
    sent = dict(_metadata(context))
    assert sent.pop(REQUEST_ID_KEY)
    assert sent == {"team": "a", "empty": "", "some-bin": b"\xff", PASSED_ON: "1"}


def test_so_is_an_id_that_grpc_would_not_send() -> None:
    context = SimpleNamespace(invocation_metadata=lambda: [(REQUEST_ID_KEY, "größer")])
    token = CURRENT_REQUEST.set("")
    try:
        assert _metadata(context) == ((PASSED_ON, "1"),)
    finally:
        CURRENT_REQUEST.reset(token)
