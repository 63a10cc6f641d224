"""Which server gets a request, and what happens when it fails there: without sockets or threads."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from headrace.client.balancing.attempts import RequestAttempts, load_of, network_of
from headrace.client.balancing.fleet import Fleet, Server
from headrace.client.balancing.health import ProbeResult
from headrace.client.balancing.options import Balancing
from headrace.client.errors import Unavailable, from_details
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.codec import encode_values
from headrace.wire.errors import ErrorDetails
from tests.support.manual_clock import ManualClock

GONE = ErrorDetails(grpc.StatusCode.UNAVAILABLE, "gone")
DRAINS = ErrorDetails(grpc.StatusCode.UNAVAILABLE, "drains", reason="SHUTTING_DOWN")
DOWN = ErrorDetails(grpc.StatusCode.UNAVAILABLE, "no device", reason="UNAVAILABLE")
FULL = ErrorDetails(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", reason="QUEUE_FULL")
LACKS = ErrorDetails(grpc.StatusCode.NOT_FOUND, "no", reason="NOT_FOUND", field="network")
WRONG = ErrorDetails(grpc.StatusCode.INVALID_ARGUMENT, "x", reason="INVALID_ARGUMENT")


class World:
    """Three servers, asked in turn, on a clock that stands still."""

    def __init__(self, count: int = 3, **options: Any) -> None:
        self.clock = ManualClock(100.0)
        self.woken = 0
        chosen = Balancing(**{"policy": "round_robin", **options})
        self.fleet = Fleet(chosen, self._wake, self.clock, lambda bound: 0)
        self.fleet.add(self.fleet.update([f"s{number}:1" for number in range(count)]))

    def _wake(self) -> None:
        self.woken += 1

    def request(self, network: str = "m") -> RequestAttempts:
        return RequestAttempts(self.fleet, pb.GetNetworkRequest(name=network))

    def up(self) -> list[bool]:
        return [server.health.up for server in self.fleet.servers]

    def served_by(self, count: int) -> set[str]:
        """The servers that so many requests go to."""
        found = set()
        for _ in range(count):
            attempts = self.request()
            server = attempts.server()
            attempts.answered(server, None)
            found.add(server.address)
        return found


def fail(attempts: RequestAttempts, details: ErrorDetails) -> tuple[Server, float | None]:
    server = attempts.server()
    return server, attempts.failed(server, from_details(details))


def test_a_request_that_cannot_be_sent_goes_to_another_server_at_once() -> None:
    world = World()
    attempts = world.request()
    first, pause = fail(attempts, GONE)
    assert pause == 0.0
    second = attempts.server()
    assert second is not first
    assert not first.health.up


@pytest.mark.parametrize("details", [GONE, DRAINS])
def test_a_server_that_is_gone_gets_no_request_until_it_serves_again(details: ErrorDetails) -> None:
    world = World()
    first, _ = fail(world.request(), details)
    assert first.address not in world.served_by(9)
    world.clock.advance(1.0)
    assert first in world.fleet.due()
    assert not world.fleet.probed(first, ProbeResult.SERVING)
    assert len(world.served_by(9)) == 3


def test_an_error_of_the_caller_is_final_and_says_nothing_of_the_server() -> None:
    world = World()
    for _ in range(20):
        server, pause = fail(world.request(), WRONG)
        assert pause is None
        assert server.in_flight == 0
    assert len(world.served_by(9)) == 3


def test_a_request_that_failed_inside_a_server_is_not_repeated() -> None:
    bug = ErrorDetails(grpc.StatusCode.INTERNAL, "bug", reason="INTERNAL")
    assert fail(World().request(), bug)[1] is None


def test_when_all_servers_are_gone_there_is_a_pause_before_each_next_round() -> None:
    world = World(attempts=8)
    attempts = world.request()
    pauses = [fail(attempts, GONE)[1] for _ in range(8)]
    assert pauses[:2] == [0.0, 0.0]
    assert pauses[-1] is None
    waited = [pause for pause in pauses[2:-1] if pause is not None]
    assert all(0.2 <= pause <= 1.2 for pause in waited)
    assert len(waited) == 5


def test_a_full_queue_sends_a_request_on_until_all_are_full() -> None:
    world = World()
    attempts = world.request()
    assert [fail(attempts, FULL)[1] for _ in range(3)] == [0.0, 0.0, None]
    assert world.up() == [True] * 3


def test_a_network_is_found_as_long_as_one_server_has_it() -> None:
    world = World(count=12, attempts=2)
    attempts = world.request()
    asked = [fail(attempts, LACKS) for _ in range(12)]
    assert len({server for server, _ in asked}) == 12
    assert [pause for _, pause in asked] == [0.0] * 11 + [None]


def test_a_server_that_lacks_a_network_gets_others_and_is_asked_again_later() -> None:
    world = World()
    first, _ = fail(world.request("m"), LACKS)
    for network, there in (("m", False), ("other", True)):
        asked = set()
        for _ in range(6):
            attempts = world.request(network)
            server = attempts.server()
            attempts.answered(server, None)
            asked.add(server)
        assert (first in asked) is there
    world.clock.advance(1.1)
    assert len(world.served_by(6)) == 3


def test_a_failing_server_is_left_out_for_a_while() -> None:
    world = World(eject_after=4, eject_seconds=10.0)
    bad = world.fleet.servers[0]
    for _ in range(60):
        attempts = world.request()
        server = attempts.server()
        if server is bad:
            attempts.failed(server, from_details(DOWN))
        else:
            attempts.answered(server, None)
    assert bad.address not in world.served_by(9)
    world.clock.advance(10.1)
    assert bad.address in world.served_by(9)


def test_at_most_half_of_the_servers_are_left_out() -> None:
    world = World(count=4, eject_after=1)
    for _ in range(40):
        fail(world.request(), DOWN)
    now = world.clock()
    assert sum(server.health.is_ejected(now) for server in world.fleet.servers) == 2


def test_repeats_stop_where_the_budget_is_spent_but_not_for_servers_that_drain() -> None:
    world = World(retry_ratio=0.0)
    while world.fleet.may_repeat():
        pass
    assert fail(world.request(), DOWN)[1] is None
    assert fail(world.request(), DRAINS)[1] == 0.0


def test_a_silent_server_is_asked_and_then_given_up() -> None:
    world = World(frozen_seconds=1.5)
    attempts = world.request()
    server = attempts.server()
    assert ticked(world, 0.6) == [server]
    assert ticked(world, 0.9) == []
    assert world.fleet.probed(server, ProbeResult.NONE)
    cancelled = ErrorDetails(grpc.StatusCode.CANCELLED, "Channel closed!")
    assert attempts.failed(server, from_details(cancelled), given_up=True) == 0.0
    assert attempts.server() is not server


def test_a_client_that_did_not_run_itself_blames_no_server() -> None:
    world = World(frozen_seconds=1.5)
    server = world.request().server()
    world.clock.advance(0.4)
    assert world.fleet.due() == []
    world.clock.advance(0.1)
    assert world.fleet.due() == [server]
    world.clock.advance(1.0)  # without a tick: the process was stopped, or its loop was busy
    assert not world.fleet.probed(server, ProbeResult.NONE)
    assert server.health.up


def test_if_no_server_is_up_a_silent_one_is_tried_before_one_that_is_gone() -> None:
    world = World(count=2)
    silent, gone = world.fleet.servers
    silent.health.went_down(world.clock(), silent=True)
    gone.health.went_down(world.clock())
    assert world.served_by(4) == {silent.address}


def ticked(world: World, seconds: float) -> list[Server]:
    """Lets time pass, with the ticks of a client that runs. The servers to be asked."""
    asked = []
    for _ in range(round(seconds / 0.1)):
        world.clock.advance(0.1)
        asked += world.fleet.due()
    return asked


def test_silence_counts_from_the_first_request_after_a_rest() -> None:
    world = World()
    world.served_by(3)
    world.clock.advance(100.0)
    world.request().server()
    assert world.fleet.due() == []


def test_somebody_is_woken_by_the_first_request_after_a_rest_alone() -> None:
    world = World()
    world.served_by(5)
    assert world.woken == 1
    assert world.fleet.may_sleep()
    world.served_by(5)
    assert world.woken == 2


def test_nobody_sleeps_while_a_request_is_in_flight_or_a_server_is_down() -> None:
    world = World()
    attempts = world.request()
    server = attempts.server()
    assert not world.fleet.may_sleep()
    attempts.failed(server, from_details(GONE))
    assert not world.fleet.may_sleep()


def test_servers_that_dns_no_longer_tells_finish_what_they_have() -> None:
    world = World()
    attempts = world.request()
    leaving = attempts.server()
    stay = [each.address for each in world.fleet.servers if each is not leaving]
    (new,) = world.fleet.update([*stay, "new:1"])
    world.fleet.add([new])
    assert world.served_by(9) == {*stay, "new:1"}
    assert world.fleet.forget_retired() == []
    attempts.answered(leaving, None)
    assert world.fleet.forget_retired() == [leaving]
    assert world.fleet.forget_retired() == []


def test_a_name_is_looked_up_again_at_its_time_and_soon_if_a_server_is_down() -> None:
    world = World(resolve_seconds=30.0)
    assert [world.fleet.must_resolve(age) for age in (0.5, 2.0, 30.0)] == [False, False, True]
    fail(world.request(), GONE)
    assert [world.fleet.must_resolve(age) for age in (0.5, 2.0)] == [False, True]


def test_without_servers_a_request_says_so() -> None:
    world = World(count=0)
    with pytest.raises(Unavailable, match="no server is known"):
        world.request().server()


def reply_of(in_flight: int) -> bytes:
    return pb.InferReply(id="r", in_flight=in_flight).SerializeToString()


def test_the_load_that_a_reply_tells_counts_beside_the_clients_own_for_a_second() -> None:
    world = World(policy="least_loaded")
    attempts = RequestAttempts(world.fleet, b"")
    busy = attempts.server()
    attempts.answered(busy, reply_of(7))
    assert busy.load(world.clock()) == 7
    world.request()
    assert busy.load(world.clock.advance(1.1)) == 0


def test_the_clients_own_requests_are_not_counted_twice() -> None:
    world = World(count=1, policy="least_loaded")
    others = [world.request() for _ in range(4)]
    for each in others:
        each.server()
    attempts = RequestAttempts(world.fleet, b"")
    server = attempts.server()
    attempts.answered(server, reply_of(4))  # these four
    assert server.load(world.clock()) == 4


def test_a_broken_reply_tells_no_load() -> None:
    assert load_of(b"\xff\xff") is None


@pytest.mark.parametrize("name", ["", "m", "n" * 127])
def test_the_network_is_read_from_a_serialised_request(name: str) -> None:
    request = pb.InferRequest(network=name, id="r")
    encode_values({"x": np.ones(3, np.float32)}, request.inputs, [], "inputs")
    assert network_of(request.SerializeToString()) == name


def test_a_request_without_a_network_names_none() -> None:
    assert [network_of(each) for each in (b"", b"\x0a", b"\x12\x01r")] == ["", "", ""]
