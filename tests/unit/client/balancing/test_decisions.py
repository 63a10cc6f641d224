"""The single decisions of a client with several servers: budget, picker, verdicts, addresses."""

from __future__ import annotations

import itertools
import random
import socket
from typing import Any

import grpc
import pytest

from headrace.client.balancing.addresses import is_several, listed, name_of, resolved
from headrace.client.balancing.fleet import Picker
from headrace.client.balancing.health import Mark, judge
from headrace.client.balancing.options import Balancing
from headrace.client.channel.budget import RetryBudget
from headrace.client.errors import Error, InvalidArgument, from_details
from headrace.wire.errors import ErrorDetails


def error(code: str, reason: str = "", field: str | None = None) -> Error:
    return from_details(ErrorDetails(grpc.StatusCode[code], "no", reason=reason, field=field))


# -- the budget --


def spent(budget: RetryBudget, now: float) -> int:
    """How many repeats it allows at once."""
    return sum(1 for _ in itertools.takewhile(bool, (budget.withdraw(now) for _ in range(2000))))


def test_a_new_client_may_repeat_a_burst() -> None:
    assert spent(RetryBudget(0.2, 0.0), 0.0) == 100


def test_repeats_are_a_share_of_the_requests() -> None:
    budget = RetryBudget(0.5, 0.0)
    spent(budget, 0.0)
    for _ in range(60):
        budget.deposit()
    assert spent(budget, 0.0) == 30


def test_time_allows_ten_repeats_a_second_but_saves_no_more_than_a_burst() -> None:
    budget = RetryBudget(0.0, 0.0)
    spent(budget, 0.0)
    assert spent(budget, 1.0) == 10
    assert spent(budget, 1000.0) == 100


def test_what_requests_pay_in_has_a_bound() -> None:
    budget = RetryBudget(1.0, 0.0)
    for _ in range(10_000):
        budget.deposit()
    assert spent(budget, 0.0) == 1000


# -- the picker --


class Busy:
    def __init__(self, count: int) -> None:
        self.count = count

    def load(self, now: float) -> int:
        return self.count


def below(*numbers: int) -> Any:
    """A source of chance that gives these numbers."""
    given = iter((0, *numbers))  # the first is where round robin begins

    def chosen(bound: int) -> int:
        number = next(given)
        assert number < bound
        return number

    return chosen


def test_round_robin_takes_one_after_another() -> None:
    servers = [Busy(load) for load in (9, 0, 5)]
    picker = Picker(round_robin=True, below=below())
    assert [servers.index(picker.pick(servers, 0.0)) for _ in range(6)] == [1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("loads", "others", "expected"),
    [
        ((0, 0, 0), (0, 1, 0), [0, 0, 0]),  # idle servers: there is no reason to leave
        ((9, 0, 5), (1, 1, 0), [2, 1, 1]),  # the random other one is taken if it has less
        ((5, 5, 5), (0, 1, 1), [0, 0, 0]),
    ],
)
def test_the_last_server_is_kept_unless_a_random_other_one_has_less_load(
    loads: tuple[int, ...], others: tuple[int, ...], expected: list[int]
) -> None:
    servers = [Busy(load) for load in loads]
    picker = Picker(round_robin=False, below=below(*others))
    assert [servers.index(picker.pick(servers, 0.0)) for _ in others] == expected


def test_clients_begin_at_different_servers_and_begin_again_if_theirs_is_gone() -> None:
    servers = [Busy(0) for _ in range(3)]
    picker = Picker(round_robin=False, below=lambda bound: min(1, bound - 1))
    first = picker.pick(servers, 0.0)
    assert first is servers[1]
    left = [each for each in servers if each is not first]
    assert picker.pick(left, 0.0) is left[1]
    assert picker.pick(servers, 0.0) is left[1]


def test_the_load_of_many_requests_is_divided_evenly() -> None:
    chance = random.Random(5)
    servers = [Busy(0) for _ in range(8)]
    picker = Picker(round_robin=False, below=chance.randrange)
    for _ in range(8000):
        picker.pick(servers, 0.0).count += 1
    assert sum(each.count for each in servers) == 8000
    assert max(each.count for each in servers) - min(each.count for each in servers) <= 8


@pytest.mark.parametrize("round_robin", [True, False])
def test_one_server_is_taken_without_a_choice(round_robin: bool) -> None:
    server = Busy(3)
    assert Picker(round_robin=round_robin, below=below()).pick([server], 0.0) is server


# -- verdicts --


@pytest.mark.parametrize(
    ("failure", "mark", "elsewhere", "free"),
    [
        (error("UNAVAILABLE"), Mark.UNREACHABLE, True, False),
        (error("UNAVAILABLE", "SHUTTING_DOWN"), Mark.DRAINS, True, True),
        (error("UNAVAILABLE", "STOPPED"), Mark.DRAINS, True, False),
        (error("UNAVAILABLE", "UNAVAILABLE"), Mark.FAULT, True, False),
        (error("UNAVAILABLE", "NETWORK_LOADING"), Mark.LACKS, True, True),
        (error("RESOURCE_EXHAUSTED", "QUEUE_FULL"), Mark.FULL, True, False),
        (error("RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"), Mark.ANSWERS, False, False),
        (error("NOT_FOUND", "NOT_FOUND", "network"), Mark.LACKS, True, True),
        (error("NOT_FOUND", "NOT_FOUND", "version"), Mark.LACKS, True, True),
        (error("NOT_FOUND", "NOT_FOUND", "outputs[0]"), Mark.ANSWERS, False, False),
        (error("INTERNAL", "INTERNAL"), Mark.FAULT, False, False),
        (error("UNKNOWN"), Mark.FAULT, False, False),
        (error("INVALID_ARGUMENT", "INVALID_ARGUMENT"), Mark.ANSWERS, False, False),
        (error("DEADLINE_EXCEEDED"), Mark.ANSWERS, False, False),
        (error("CANCELLED", "CANCELLED"), Mark.ANSWERS, False, False),
        (error("PERMISSION_DENIED"), Mark.ANSWERS, False, False),
    ],
)
def test_an_error_says_whether_another_server_may_do_better(
    failure: Error, mark: Mark, elsewhere: bool, free: bool
) -> None:
    assert judge(failure) == (mark, elsewhere, free)


# -- addresses and options --


@pytest.mark.parametrize(
    ("target", "balance", "several"),
    [
        ("a:9000", False, False),
        ("a:9000", True, True),
        ("a:9000,b:9000", False, True),
        ("a,b", False, True),
        (["a:9000"], False, True),
        ("ipv4:10.0.0.1:9000,10.0.0.2:9000", False, False),  # gRPC's own list
        ("dns:///name:9000", False, False),
        ("dns:///name:9000", True, True),
        ("unix:/tmp/a,b", False, False),
    ],
)
def test_a_client_balances_if_it_is_told_several_servers(
    target: Any, balance: bool, several: bool
) -> None:
    assert is_several(target, balance) is several


def test_a_list_names_each_server_once_and_with_its_port() -> None:
    assert listed(["a", "b:9001", "a:9000"]) == ["a:9000", "b:9001"]
    assert listed("a:1, [::1]:2,b") == ["a:1", "[::1]:2", "b:9000"]


@pytest.mark.parametrize(
    "targets", [[], ["a:99999"], ["http://a"], "a,,b", [f"h{n}" for n in range(1025)]]
)
def test_a_list_that_names_no_servers_is_refused(targets: Any) -> None:
    with pytest.raises(InvalidArgument):
        listed(targets)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("dns:///models.prod:9001", ("models.prod", 9001)),
        ("dns:///models", ("models", 9000)),
        ("dns:models:1", ("models", 1)),
        ("dns:///[::1]:7", ("::1", 7)),
        ("models:9000", None),
        (["dns:///models"], None),
    ],
)
def test_a_name_is_looked_up_if_its_scheme_is_dns(target: Any, name: Any) -> None:
    assert name_of(target) == name


def test_a_name_that_a_dns_server_of_its_own_should_tell_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="pass dns:///models:9000"):
        name_of("dns://10.0.0.1/models")


def test_an_address_that_dns_tells_twice_is_one_server() -> None:
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.2", 9000))
    other = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 9000))
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 9000, 0, 0))
    assert resolved([four, other, four, six]) == [
        "10.0.0.1:9000",
        "10.0.0.2:9000",
        "[fd00::1]:9000",
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "best"},
        {"attempts": 0},
        {"attempts": 1.5},
        {"retry_ratio": -0.1},
        {"hedge_after_seconds": float("nan")},
        {"frozen_seconds": 0.1},
        {"eject_seconds": "10"},
        {"resolve_seconds": float("inf")},
    ],
    ids=str,
)
def test_an_option_out_of_its_range_is_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(InvalidArgument, match=name):
        Balancing(**options)
