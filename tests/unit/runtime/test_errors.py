"""Errors: each class carries its status, and messages say what to do."""

from __future__ import annotations

import difflib
import errno

import pytest

from headrace.runtime import errors
from headrace.runtime.errors import (
    DeadlineExceeded,
    HeadraceError,
    InvalidArgument,
    InvalidModel,
    NotFound,
    QueueFull,
    UnsupportedLayer,
    UnsupportedLayers,
    did_you_mean,
)

CLASSES = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, HeadraceError) and each is not HeadraceError
]
STATUSES = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
}


def test_every_class_carries_a_status_and_all_statuses_have_a_class() -> None:
    assert {each.status for each in CLASSES} == STATUSES


def test_every_class_has_a_reason_of_its_own() -> None:
    assert len({each.reason for each in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize("each", CLASSES)
def test_the_tree_at_the_head_of_the_module_names_every_class(each: type[HeadraceError]) -> None:
    assert each.__name__ in (errors.__doc__ or "")


def test_a_narrower_error_has_the_status_of_the_wider_one() -> None:
    error: InvalidArgument = InvalidModel("bad", field="model")
    assert (error.status, error.reason) == ("INVALID_ARGUMENT", "INVALID_MODEL")


def test_an_error_carries_message_field_and_facts_of_its_own() -> None:
    facts = {"limit": "3"}
    error = InvalidArgument("too many", field="inputs", metadata=facts)
    facts["limit"] = "4"
    assert (str(error), error.message, error.field) == ("too many", "too many", "inputs")
    assert error.metadata == {"limit": "3"}
    assert DeadlineExceeded("late").metadata == {}
    assert error.retry_delay_seconds is None


def test_a_full_queue_says_when_to_come_back() -> None:
    assert QueueFull("full", retry_delay_seconds=0.25).retry_delay_seconds == 0.25


def test_unsupported_layers_are_told_by_reason_and_the_first_by_name() -> None:
    same = [UnsupportedLayer(f"layer{n}", "Loop", "no loops") for n in range(685)]
    error = UnsupportedLayers("CPU", [UnsupportedLayer("if", "If", "no branches"), *same])
    assert error.message == (
        "CPU does not support 686 layer(s): if (If): no branches; "
        "layer0 (Loop), layer1 (Loop), layer2 (Loop) and 682 more: no loops"
    )
    assert len(error.layers) == 686


def test_a_reason_with_each_layers_own_names_and_sizes_is_told_once() -> None:
    same = [UnsupportedLayer("c", "Conv", "(1, 3, 3) does not fit 'k0'")] * 2
    own = [UnsupportedLayer(f"c{n}", "Conv", f"({n}, 3) does not fit 'k{n}'") for n in range(30)]
    types = [UnsupportedLayer(f"t{n}", "Relu", f"no float{n}") for n in (16, 64)]
    error = UnsupportedLayers("CPU", [*same, *own, *types])
    assert error.message == (
        "CPU does not support 34 layer(s): c (Conv), c (Conv): (1, 3, 3) does not fit 'k0'; "
        "likewise c0 (Conv), c1 (Conv), c2 (Conv) and 27 more; "
        "t16 (Relu): no float16; t64 (Relu): no float64"
    )


def test_unsupported_layers_are_all_kept_and_the_text_stays_short() -> None:
    layers = [UnsupportedLayer(f"layer{n}", "Loop", f"reason r{n}") for n in range(50)]
    error = UnsupportedLayers("CPU", iter(layers))
    assert error.layers == tuple(layers)
    assert "50 layer(s)" in error.message
    assert error.message.endswith("; 42 more for other reasons; a query lists them all")
    assert all(f"layer{n} (Loop): reason r{n}" in error.message for n in range(8))
    assert (error.field, error.metadata) == ("model", {"device": "CPU", "layers": "50"})


@pytest.mark.parametrize(
    ("name", "known", "clause"),
    [
        ("CPUU", ["CPU", "TEMPLATE"], "; did you mean 'CPU'?"),
        ("cpu", ["CPU", "TEMPLATE"], "; did you mean 'CPU'?"),
        ("zzz", ["b", "a"], "; known: a, b"),
        ("zzz", [], ""),
        ("zzz", [f"name{n}" for n in range(13)], ""),
    ],
)
def test_did_you_mean_gives_the_closest_name_or_all_if_few(
    name: str, known: list[str], clause: str
) -> None:
    assert did_you_mean(name, iter(known)) == clause


def test_of_a_name_of_megabytes_only_the_beginning_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda name, *_, n: compared.append(name))
    did_you_mean("a" * 2**22, ["b"])
    assert compared == ["a" * 128]


def test_of_thousands_of_known_names_only_those_near_in_their_order_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = [f"net-{number:04}" for number in range(5000)]
    assert did_you_mean("Net-2500x", known) == "; did you mean 'net-2500'?"
    compared: list[str] = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda _, near, n: compared.extend(near))
    did_you_mean("net-2500x", known)
    assert compared == known[2401:2601]


def test_an_unknown_name_is_not_found_with_a_suggestion() -> None:
    error = NotFound.unknown("device", "CPV", ["CPU"], field="device")
    assert isinstance(error, NotFound)
    assert (error.message, error.field) == (
        "unknown device 'CPV'; did you mean 'CPU'?",
        "device",
    )


def test_an_empty_name_is_said_to_be_empty_and_the_known_names_are_told() -> None:
    error = NotFound.unknown("network", "", ["m", "n"], field="network")
    assert error.message == "the name of the network is empty; known: m, n"


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.EMFILE, "too many"), "file descriptors"),
        (OSError(errno.ENOSPC, "full"), "space for files"),
        (RuntimeError("can't start new thread"), "threads"),
        (RuntimeError("a plugin's text\nResource temporarily unavailable"), "threads"),
    ],
)
def test_what_the_system_has_run_out_of_is_told(error: Exception, what: str) -> None:
    bug = errors.Internal("a device failed")
    bug.__cause__ = error
    for each in (error, bug):
        found = errors.exhausted(each)
        assert found is not None
        assert found.message == f"the server has run out of {what}; try again later"


def test_no_other_error_says_that_the_system_has_run_out_of_something() -> None:
    known = errors.Unavailable("down")
    known.__cause__ = MemoryError()
    itself = RuntimeError("a cycle")
    itself.__cause__ = itself
    for each in (known, itself, OSError(errno.ENOENT, "none"), ValueError(), None):
        assert errors.exhausted(each) is None
