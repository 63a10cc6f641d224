"""What is said of a call comes out as it went in, and nothing else is believed."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.processes import heads
from headrace.server.processes.frames import Broken
from headrace.server.processes.heads import Begin, Caller, Callers

CALLER = Caller(
    "ipv4:127.0.0.1:5000",
    (("user-agent", "a\u00e4"), ("grpc-trace-bin", b"\x00\xff"), ("user-agent", "b")),
    "-----BEGIN CERTIFICATE-----",
)


@pytest.mark.parametrize("deadline", [None, 0.0, 12345.678])
def test_a_beginning_says_who_calls_what_until_when(deadline: float | None) -> None:
    callers = Callers()
    body = heads.begin(deadline, 3, callers.to_bytes(CALLER)) + b"message"
    begun = heads.parse_begin(body, 4, Callers())
    assert begun == Begin(deadline, 3, CALLER, len(body) - len(b"message"))


def beginning(deadline: float, method: int, size: int, caller: bytes) -> bytes:
    return struct.pack("<dHI", deadline, method, size) + caller


GOOD = Callers().to_bytes(CALLER)
BAD_CALLERS = [
    b"",
    b"{}",
    b"[]",
    b'[1,[],""]',
    b'["p",{},""]',
    b'["p",[],null]',
    b'["p",[["k"]],""]',
    b'["p",[["k",1]],""]',
    b'["p",[["k","v","w"]],""]',
    b'["p",[["k-bin","no hexadecimal"]],""]',
    b'["p",[],"","more"]',
    b"\xff\xfe",
    b"[" * 100_000,
]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 13,
        beginning(math.nan, 0, len(GOOD), GOOD),
        beginning(0.0, 4, len(GOOD), GOOD),
        beginning(0.0, 65535, len(GOOD), GOOD),
        beginning(0.0, 0, len(GOOD) + 1, GOOD),
        beginning(0.0, 0, 2**32 - 1, GOOD),
        beginning(0.0, 0, len(GOOD) - 1, GOOD),
        *(beginning(0.0, 0, len(each), each) for each in BAD_CALLERS),
    ],
)
def test_a_beginning_that_is_not_one_is_broken(body: bytes) -> None:
    with pytest.raises(Broken):
        heads.parse_begin(body, 4, Callers())


@given(st.binary(max_size=100))
def test_no_bytes_of_a_beginning_raise_anything_else(body: bytes) -> None:
    for data in (body, beginning(1.0, 0, len(body), body)):
        with pytest.raises(Broken):
            heads.parse_begin(data, 4, Callers())


@pytest.mark.parametrize("message", [b"", b"reply"])
@pytest.mark.parametrize(
    ("code", "details", "trailing"),
    [(0, "", ()), (0, "", (("k", "v"),)), (5, "not there: \u00e4", (("d-bin", b"\x00\x01"),))],
)
def test_a_status_comes_out_as_it_went_in(
    code: int, details: str, trailing: heads.Metadata, message: bytes
) -> None:
    body = heads.status(code, details, trailing) + message
    found = heads.parse_status(body)
    assert found[:3] == (code, details, trailing)
    assert body[found.offset :] == message


@pytest.mark.parametrize(
    "facts", [b"", b"\1", b"{}", b'[17,"",[]]', b'[-1,"",[]]', b'["5","",[]]', b'[5,"",[1]]']
)
def test_a_status_that_is_not_one_is_broken(facts: bytes) -> None:
    with pytest.raises(Broken):
        heads.parse_status(struct.pack("<I", len(facts) or 9) + facts)


def test_only_so_many_callers_are_remembered_and_none_with_many_bytes() -> None:
    callers = Callers()
    for each in range(3000):
        caller = Caller(f"ipv4:127.0.0.1:{each}", ())
        assert callers.from_bytes(callers.to_bytes(caller)) == caller
    long = Caller("p", (("k", "v" * 8192),))
    assert callers.from_bytes(callers.to_bytes(long)) == long
    kept = [*callers._bytes.values(), *callers._callers]
    assert len(kept) <= 2048
    assert max(map(len, kept)) <= 4096
    assert json.loads(callers.to_bytes(long))[0] == "p"
