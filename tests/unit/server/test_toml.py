"""Whatever is wrong with a TOML file is a ValueError with a reason, in a short time."""

from __future__ import annotations

import pytest

from headrace.server.toml import parse_toml


def test_toml_is_read_with_and_without_a_byte_order_mark() -> None:
    assert parse_toml(b"a = 1") == parse_toml(b"\xef\xbb\xbfa = 1") == {"a": 1}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a = [", "is not TOML"),
        (b"\xff\xfea\0 \0", "is not UTF-8"),
        ("a = 1".encode("utf-16"), "is not UTF-8"),
        (b"a = " + b"[" * 100_000, "levels deep"),
        (b"a = " + b"[" * 50 + b"]" * 50, "levels deep"),
        (b"a = " + b"{a=" * 50 + b"1" + b"}" * 50, "levels deep"),
        (b"a." * 500_000 + b"a = 1", "levels deep"),
        (b"['a'" + b" . b" * 200_000 + b"]", "levels deep"),
        (b"a = " + b"1" * 5000, "more than 64 bits"),
        (b"[a]\nb = [0x" + b"f" * 100_000 + b"]", "a.b has more than 64 bits"),
        (b"a = -9223372036854775809", "a has more than 64 bits"),
    ],
)
def test_what_cannot_be_read_has_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_toml(data)
