from __future__ import annotations

import re

import pytest

from headrace.server.access.identity import Identity, Role
from headrace.server.access.tokens import parse_entries, token_hash
from tests.support.tokens import certificate_entry, entry


def test_a_token_gives_the_name_and_the_roles_of_its_entry() -> None:
    text = entry("ci", "secret-1", "infer", "read") + entry("ops", "secret-2", "manage")
    entries = parse_entries(text.encode())
    found = entries.of_token("secret-2")
    assert found is not None
    assert found == Identity("token:ops", frozenset({Role.MANAGE}))


@pytest.mark.parametrize("wrong", ["", "secret", "secret-1 ", "SECRET-1", "\ud800", "é" * 5000])
def test_no_other_text_is_a_token(wrong: str) -> None:
    assert parse_entries(entry("ci", "secret-1", "infer").encode()).of_token(wrong) is None


def test_the_hash_of_a_token_is_not_a_token() -> None:
    entries = parse_entries(entry("ci", "secret-1", "infer").encode())
    assert entries.of_token(token_hash("secret-1")) is None


def test_a_hash_that_starts_like_a_known_one_is_not_accepted() -> None:
    known = token_hash("secret-1")
    similar = known[:8] + token_hash("other")[8:]
    text = entry("ci", "secret-1", "infer").replace(known, similar)
    assert parse_entries(text.encode()).of_token("secret-1") is None


def test_an_empty_file_lets_nobody_in() -> None:
    entries = parse_entries(b"# no tokens yet\n")
    assert entries.of_token("") is None
    assert not entries.certificates


def test_a_certificate_and_a_token_of_one_name_are_two_identities() -> None:
    text = certificate_entry("ci", "read") + entry("ci", "secret-1", "read")
    entries = parse_entries(text.encode())
    found = entries.of_token("secret-1")
    assert found is not None
    assert (entries.certificates["ci"].name, found.name) == ("certificate:ci", "token:ci")


GOOD = entry("ci", "secret-1", "infer")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("token = 1", "write [[token]]"),
        ("[token]\nname = 'ci'", "write [[token]]"),
        (GOOD.replace("sha256", "sha265"), "did you mean 'sha256'"),
        (GOOD.replace('"infer"', '"infr"'), "did you mean 'infer'"),
        (GOOD.replace('["infer"]', "[]"), "roles must be a list"),
        (GOOD.replace('["infer"]', '"infer"'), "roles must be a list"),
        (GOOD.replace("ci", "c i"), "name must match"),
        (GOOD.replace("ci", ""), "name must match"),
        (GOOD.replace(token_hash("secret-1"), "secret-1"), "64 hexadecimal digits"),
        (GOOD + GOOD, "is there twice"),
        (GOOD + entry("ci", "secret-2", "read"), "is there twice"),
        (certificate_entry("a", "read") * 2, "is there twice"),
        ("[[tokens]]\nname = 'ci'", "did you mean 'token'"),
        ("[[token]", "line 1"),
        ("a = " + "[" * 10_000, "levels deep"),
        ("a = " + "1" * 5000, "64 bits"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_without_hashes(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)) as caught:
        parse_entries(text.encode())
    assert token_hash("secret-1") not in str(caught.value)
    assert "secret-1" not in str(caught.value)
