"""Which connections end because their clients take too many, or never show who they are."""

from __future__ import annotations

from headrace.server.transport.native.strangers import OpenConnection, unwanted

A, B = "ipv4:10.0.0.1:", "ipv6:%5B::2%5D:"


def test_a_connection_without_a_credential_ends_when_its_time_is_up() -> None:
    times = ((1, 0.0), (2, 0.0), (3, 9.0))
    connected = [OpenConnection(f"{A}{port}", since, port == 2) for port, since in times]
    ends = unwanted(connected, 10.5, per_address=9, stranger_seconds=10)
    assert ends == {f"{A}1": "no valid credential within 10 seconds"}


def test_without_access_control_nobody_needs_a_credential() -> None:
    connected = [OpenConnection(f"{A}1", 0.0)]
    assert unwanted(connected, 1e9, per_address=1, stranger_seconds=None) == {}


def test_an_address_keeps_its_first_connections_and_those_with_a_credential() -> None:
    connected = [OpenConnection(f"{A}{port}", float(port), port == 5) for port in range(1, 6)]
    ends = unwanted(connected, 6.0, per_address=3, stranger_seconds=None)
    assert set(ends) == {f"{A}3", f"{A}4"}


def test_each_address_has_a_bound_of_its_own() -> None:
    connected = [OpenConnection(f"{each}{port}", 0.0) for each in (A, B) for port in range(3)]
    assert unwanted(connected, 1.0, per_address=3, stranger_seconds=None) == {}


def of_user(user: int, process: int, count: int, since: float = 0.0) -> list[OpenConnection]:
    """Connections at a Unix socket."""
    return [
        OpenConnection(f"unix:{user}:{process}:{process * 100 + inode}", since + inode)
        for inode in range(count)
    ]


def test_a_user_with_many_processes_leaves_room_for_other_users() -> None:
    connected = [each for process in range(1, 6) for each in of_user(7, process, 4, process)]
    other = of_user(8, 99, 10, 50.0)
    ends = unwanted([*connected, *other], 60.0, per_address=16, stranger_seconds=None)
    assert ends == dict.fromkeys(
        (each.peer for each in sorted(connected, key=lambda each: each.since)[16:]),
        "more than 16 connections of one user",
    )


def test_a_process_leaves_room_for_the_others_of_its_user() -> None:
    connected = [*of_user(7, 1, 20), *of_user(7, 2, 2, 50.0)]
    connected[19] = connected[19]._replace(has_credential=True)
    ends = unwanted(connected, 60.0, per_address=16, stranger_seconds=None)
    assert ends == dict.fromkeys(
        (each.peer for each in connected[13:19]), "more than 14 connections of one process"
    )
