"""Counters of the server beside those of its clients."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tools.soak.accounts import differences, unsettled
from tools.soak.ledger import Counts, End, Ledger, Row, in_flight, read, total

UNARY, STREAM = Row("unary", "net"), Row("stream", "net")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(**outcomes: int) -> Samples:
    """What a server says that has ended so many requests of a network in each way."""
    labels = (("device", "CPU.0"), ("network", "net"), ("version", "1"))
    found: Samples = {("headrace_network_accepted_total", labels): sum(outcomes.values())}
    for outcome, count in outcomes.items():
        key = tuple(sorted((*labels, ("outcome", outcome))))
        found["headrace_network_requests_total", key] = count
    return found


def clients(**counts: int) -> Counts:
    """Two kinds of requests to one network; all of them are the stream's but one that is right."""
    ends = Counter({End[name.upper()]: count for name, count in counts.items()})
    return {UNARY: Counter({End.SENT: 1, End.OK: 1}), STREAM: ends}


def test_what_clients_were_told_is_what_the_server_has_counted() -> None:
    told = clients(sent=10, ok=6, failed=1, cancelled=2, expired=1)
    server = samples(completed=7, failed=1, cancelled=2, expired=1)
    assert differences(told, server, ["net"], []) == []


@pytest.mark.parametrize("outcome", ["completed", "cancelled", "expired", "failed"])
def test_one_more_or_less_on_the_server_is_a_difference(outcome: str) -> None:
    told = clients(sent=10, ok=6, failed=1, cancelled=2, expired=1)
    server = {"completed": 7, "failed": 1, "cancelled": 2, "expired": 1}
    for change in (1, -1):
        counted = samples(**(server | {outcome: server[outcome] + change}))
        assert len(differences(told, counted, ["net"], [])) == 1


def test_a_network_that_the_server_has_forgotten_is_a_difference() -> None:
    assert differences(clients(sent=1, ok=1), {}, ["net"], []) != []


def test_requests_that_were_given_up_or_in_flight_at_a_kill_end_in_any_way_but_once() -> None:
    told = clients(sent=10, ok=6, given_up=2)  # and two were in flight
    assert in_flight(told[STREAM]) == 2
    for ends in ({"completed": 11}, {"completed": 7, "cancelled": 2, "expired": 2}):
        assert differences(told, samples(**ends), ["net"], []) == []
    assert differences(told, samples(completed=7, cancelled=5), ["net"], []) != []
    assert differences(told, samples(completed=6, cancelled=4), ["net"], []) != []


def test_an_error_without_a_known_end_is_one_at_most() -> None:
    told = clients(sent=10, ok=9, error=1)
    assert differences(told, samples(completed=10), ["net"], []) == []
    assert differences(told, samples(completed=10, failed=1), ["net"], []) == []
    assert differences(told, samples(completed=10, failed=2), ["net"], []) != []


def test_clients_send_requests_again_that_a_killed_worker_has_failed() -> None:
    told = clients(sent=10, ok=9, error=1)
    server = samples(completed=10, failed=30)
    assert differences(told, server, ["net"], ["net"]) == []
    assert differences(told, samples(completed=11, failed=30), ["net"], ["net"]) != []


def test_refused_requests_are_none_of_the_servers() -> None:
    told = clients(sent=5, refused=5)
    assert differences(told, samples(completed=1), ["net"], []) == []


def test_work_that_has_not_ended_is_named() -> None:
    settled = samples(completed=3)
    assert unsettled(settled) == []
    (lost,) = unsettled({key: value + ("accepted" in key[0]) for key, value in settled.items()})
    assert "accepted 4, ended 3" in lost
    gauge = {("headrace_device_queue_depth", (("device", "CPU.0"),)): 2.0}
    (waits,) = unsettled(settled | gauge)
    assert "is 2" in waits


def test_a_ledger_is_read_from_its_file_while_it_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "client.counts"
    assert read(path) == {}
    ledger = Ledger(path, [UNARY, STREAM])
    ledger.add(STREAM, End.SENT, 3)
    ledger.add(STREAM, End.OK)
    found = read(path)
    assert found == {UNARY: Counter(), STREAM: Counter({End.SENT: 3, End.OK: 1})}
    assert in_flight(found[STREAM]) == 2
    assert total([found, found])[STREAM][End.SENT] == 6
