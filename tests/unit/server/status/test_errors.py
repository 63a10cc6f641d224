"""The latest errors: what is kept of them, for how long, and who sees them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from headrace.runtime.execution.job import Job
from headrace.runtime.loading.registry import NetworkRegistry
from headrace.server.access.identity import ANONYMOUS, CALLER, Identity, Role
from headrace.server.access.networks import Networks, PrivateNetworks
from headrace.server.request_log import RequestRecord
from headrace.server.status.errors import MAX_CALLERS, MAX_ERRORS, RecentErrors

A, B, OPERATOR = (
    Identity(f"token:{name}", frozenset({Role.MANAGE})) for name in ("a", "b", "operator")
)
OBSERVER = Identity("token:watch", frozenset({Role.READ}))
SHARED = Networks(NetworkRegistry(9))
PRIVATE = PrivateNetworks(NetworkRegistry(9), ["token:operator"])


def note(errors: RecentErrors, request: str, caller: Identity = ANONYMOUS, text: str = "") -> None:
    network = "m@token:a" if caller is A else ""
    said = text or f"what {request} got"
    errors.note(
        RequestRecord("Infer", "NOT_FOUND", 0.5, request, caller, "peer", said, network=network)
    )


@contextmanager
def asked_by(caller: Identity) -> Iterator[None]:
    token = CALLER.set(caller)
    try:
        yield
    finally:
        CALLER.reset(token)


def seen(errors: RecentErrors, caller: Identity, networks: Networks = PRIVATE) -> list[str]:
    with asked_by(caller):
        return [each["request_id"] for each in errors.rows(networks)]


def test_an_error_is_kept_with_what_its_caller_was_told() -> None:
    errors = RecentErrors(clock=lambda: 1000.5)
    note(errors, "r1")
    assert errors.rows(SHARED) == [
        {
            "time": 1000.5,
            "request_id": "r1",
            "method": "Infer",
            "code": "NOT_FOUND",
            "message": "what r1 got",
            "seconds": 0.5,
            "network": "",
            "caller": "anonymous",
        }
    ]


def test_the_newest_comes_first_and_the_oldest_go() -> None:
    errors = RecentErrors()
    for number in range(MAX_ERRORS + 3):
        note(errors, f"r{number}")
    rows = seen(errors, ANONYMOUS, SHARED)
    assert len(rows) == MAX_ERRORS
    assert (rows[0], rows[-1]) == (f"r{MAX_ERRORS + 2}", "r3")


def test_no_caller_pushes_out_the_errors_of_another() -> None:
    errors = RecentErrors()
    note(errors, "of B", B)
    for number in range(3 * MAX_ERRORS):
        note(errors, f"r{number}", A)
    assert seen(errors, B) == ["of B"]


def test_the_callers_are_bounded_and_the_most_quiet_goes_first() -> None:
    errors = RecentErrors()
    callers = [Identity(f"token:{number}", A.roles) for number in range(MAX_CALLERS)]
    for caller in callers:
        note(errors, caller.name, caller)
    note(errors, "again", callers[0])
    note(errors, "one more", B)
    assert seen(errors, callers[0]) == ["again", "token:0"]
    assert seen(errors, callers[1]) == []
    assert seen(errors, B) == ["one more"]


def test_texts_are_cut() -> None:
    errors = RecentErrors()
    note(errors, "r" * 5000, text="x" * 100_000)
    (row,) = errors.rows(SHARED)
    assert max(map(len, (row["request_id"], row["message"]))) <= 500
    assert row["message"].endswith("…")


def test_a_tenant_sees_its_own_errors_alone_and_an_operator_all() -> None:
    errors = RecentErrors()
    note(errors, "of A", A)
    note(errors, "of B", B)
    assert seen(errors, A) == ["of A"]
    assert seen(errors, B) == ["of B"]
    assert seen(errors, OBSERVER) == []
    assert seen(errors, OPERATOR) == ["of B", "of A"]


def test_without_private_networks_all_callers_see_all_errors() -> None:
    errors = RecentErrors()
    note(errors, "of A", A)
    assert seen(errors, OBSERVER, SHARED) == ["of A"]


def test_a_network_has_the_name_that_the_viewer_uses() -> None:
    errors = RecentErrors()
    note(errors, "of A", A)
    names = []
    for viewer in (A, OPERATOR):
        with asked_by(viewer):
            names += [each["network"] for each in errors.rows(PRIVATE)]
    assert names == ["m", "m@token:a"]


def test_a_path_that_does_not_exist_is_no_error_worth_keeping() -> None:
    errors = RecentErrors()
    errors.note(RequestRecord("GET other", "404", 0.0, "r", ANONYMOUS, "peer"))
    assert errors.rows(SHARED) == []


def test_the_network_of_a_job_is_the_request_s() -> None:
    errors = RecentErrors()
    job = Job({}, lambda _: None)
    job.network = "resnet"
    errors.note(
        RequestRecord("Infer", "INTERNAL", 0.1, "r", ANONYMOUS, "peer", "internal error 1", job)
    )
    assert errors.rows(SHARED)[0]["network"] == "resnet"


def test_threads_may_note_and_read_at_once() -> None:
    errors, numbers = RecentErrors(), count()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(500):
                note(errors, str(next(numbers)))
                errors.rows(SHARED)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures
    assert len(errors.rows(SHARED)) == MAX_ERRORS
