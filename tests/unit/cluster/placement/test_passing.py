"""What goes before the handlers of methods, and passes calls on."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from headrace.cluster.members import ReplicaAddress
from headrace.cluster.placement import forwarding
from headrace.cluster.placement.directory import Directory
from headrace.cluster.placement.forwarding import PASSED_ON, Forwarder, _metadata
from headrace.cluster.placement.methods import ForwardingMethods
from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import Unauthenticated, Unavailable
from headrace.server.access.identity import ANONYMOUS, CALLER, STRANGER, Identity, Role
from headrace.server.access.refusal import require
from headrace.server.logs import CURRENT_REQUEST
from headrace.server.services.methods import Kind, Method
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.errors import REQUEST_ID_KEY

CONTEXT = SimpleNamespace(invocation_metadata=tuple)


class Others(Forwarder):
    """The other replicas. The live ones answer with their own networks."""

    def __init__(self) -> None:
        super().__init__(Directory("own"))
        self.asked: list[str] = []
        self.directory.here = SimpleNamespace(  # type: ignore[assignment]
            serving=lambda _: False, has=lambda _: False
        )
        self.directory.place("there", {"holders": ["live"]})
        self.directory.place("gone", {"holders": ["dead"]})
        self.directory.meet(
            [ReplicaAddress("live", "localhost:1"), ReplicaAddress("own", "localhost:2")]
        )

    async def unary(self, name: str, path: str, data: bytes, *rest: Any, **how: Any) -> bytes:
        self.asked.append(name)
        if name.startswith("frozen"):
            raise Unavailable("it does not answer")
        if name != "there":
            return await super().unary(name, path, data, *rest, **how)
        if path.endswith("RepositoryIndex"):
            index = oip.RepositoryIndexResponse()
            index.models.add(name="there", state="READY")
            return bytes(index.SerializeToString())
        info = pb.NetworkInfo(name="there", state=pb.READY)
        return bytes(pb.ListNetworksReply(networks=[info]).SerializeToString())


def ask(
    name: str,
    message: Any,
    reply: Any,
    caller: Identity = ANONYMOUS,
    others: Others | None = None,
) -> Any:
    """The reply to a call of a method whose handler returns or raises `reply`."""

    async def handler(*_: Any) -> Any:
        if name == "Check":
            require(Role.READ)
        return reply

    async def call() -> Any:
        CALLER.set(caller)
        passing = ForwardingMethods(others or Others())
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


def test_a_list_waits_once_for_a_frozen_replica_however_many_networks_it_has() -> None:
    others = Others()
    for number in range(5):
        others.directory.place(f"frozen{number}", {"holders": ["frozen"]})
    others.directory.meet(
        [ReplicaAddress("live", "localhost:1"), ReplicaAddress("frozen", "localhost:9")]
    )
    reply = ask("ListNetworks", pb.ListNetworksRequest(), pb.ListNetworksReply(), others=others)
    assert len(reply.networks) == 7
    assert len([name for name in others.asked if name.startswith("frozen")]) == 1


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


def test_the_channel_to_a_replica_that_has_gone_is_closed() -> None:
    async def run() -> None:
        forwarding = Others()
        old = forwarding._channel("localhost:1")
        forwarding.directory.meet([ReplicaAddress("new", "localhost:3")])
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


class Peers(Forwarder):
    """Three replicas with a network. `frozen` takes calls and says nothing, as a stopped process.
    The others answer with their addresses, `busy` only after it was asked for its health twice."""

    def __init__(self) -> None:
        super().__init__(Directory("own"))
        self.calls: list[str] = []
        self.checks: list[str] = []
        self.cancelled: list[str] = []
        self.checked_twice = asyncio.Event()

    def holders(self, *names: str) -> None:
        self.directory.place("n", {"holders": list(names)})
        self.directory.meet([ReplicaAddress(name, name) for name in names])
        self.directory._turn = iter(lambda: 0, None)  # type: ignore[assignment]

    def _channel(self, address: str) -> Any:
        return SimpleNamespace(unary_unary=lambda path: partial(self._call, address, path))

    def _call(self, address: str, path: str, data: bytes, **how: Any) -> Any:
        if path.endswith("/Check"):
            return self._check(address)
        self.calls.append(address)
        return Reply(self._reply(address))

    async def _check(self, address: str) -> bytes:
        self.checks.append(address)
        if address == "frozen":
            none = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, none, none)
        if self.checks.count(address) == 2:
            self.checked_twice.set()
        return b""

    async def _reply(self, address: str) -> bytes:
        try:
            if address == "frozen":
                await asyncio.Event().wait()
            if address == "busy":
                await self.checked_twice.wait()
        except asyncio.CancelledError:
            self.cancelled.append(address)
            raise
        return address.encode()


class Reply:
    """A call of gRPC's."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    def __await__(self) -> Any:
        return self._reply.__await__()

    async def trailing_metadata(self) -> tuple[()]:
        return ()


CALL = SimpleNamespace(
    invocation_metadata=tuple, time_remaining=lambda: None, set_trailing_metadata=lambda _: None
)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "_QUIET_SECONDS", 0.001)


@pytest.mark.usefixtures("at_once")
def test_a_frozen_replica_is_left_and_the_next_calls_try_it_last() -> None:
    async def run() -> None:
        peers = Peers()
        peers.holders("frozen", "live")
        for _ in range(3):
            assert await peers.unary("n", "/s/Infer", b"", CALL) == b"live"
        assert peers.calls == ["frozen", "live", "live", "live"]
        assert peers.cancelled == ["frozen"]

    asyncio.run(run())


@pytest.mark.usefixtures("at_once")
def test_a_busy_replica_that_says_how_it_is_keeps_its_call() -> None:
    async def run() -> None:
        peers = Peers()
        peers.holders("busy", "live")
        assert await peers.unary("n", "/s/Infer", b"", CALL) == b"busy"
        assert peers.calls == ["busy"]

    asyncio.run(run())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("others", [(), ("live",)])
def test_a_change_is_not_repeated_after_a_frozen_replica_had_it(others: tuple[str, ...]) -> None:
    async def run() -> None:
        peers = Peers()
        peers.holders("frozen", *others)
        with pytest.raises(Unavailable, match="does not answer"):
            await peers.unary("n", "/s/UnloadNetwork", b"", CALL, repeats=False)
        assert peers.calls == ["frozen"]

    asyncio.run(run())


@pytest.mark.usefixtures("at_once")
def test_a_cancel_reaches_a_call_that_is_passed_on() -> None:
    async def run() -> None:
        peers = Peers()
        peers.holders("busy")
        call = asyncio.create_task(peers.unary("n", "/s/Infer", b"", CALL))
        while not peers.calls:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert peers.cancelled == ["busy"]
        while asyncio.all_tasks() != {asyncio.current_task()}:  # nobody asks for its health
            await asyncio.sleep(0)

    asyncio.run(run())
