from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from headrace.runtime.errors import Unauthenticated
from headrace.server.access import authenticator as module
from headrace.server.access import jwts
from headrace.server.access.authenticator import MAX_CREDENTIAL, Authenticator
from headrace.server.access.jwts import LEEWAY_SECONDS, Rules, parse_keys
from headrace.server.access.refusal import FACT
from headrace.server.access.tokens import Entries, parse_entries
from headrace.server.access.watched import WatchedFiles
from tests.support.tokens import AUDIENCE, Signer, certificate_entry, entry, key_set, replace


def nobody() -> Iterable[str]:
    return ()


def not_asked() -> Iterable[str]:
    pytest.fail("a certificate counts only without a token")


def refusal(authenticator: Authenticator, *given: str | None) -> str:
    names: Callable[[], Iterable[str]] = nobody
    with pytest.raises(Unauthenticated) as caught:
        authenticator.grant(given[0], names)
    return caught.value.metadata[FACT]


@pytest.fixture
def files(tmp_path: Path) -> WatchedFiles[Entries]:
    path = tmp_path / "tokens.toml"
    path.write_text(entry("ci", "t1", "infer") + certificate_entry("worker.test", "read"))
    return WatchedFiles([path], parse_entries, field="tokens")


@pytest.fixture
def authenticator(files: WatchedFiles[Entries]) -> Authenticator:
    return Authenticator(files)


@pytest.mark.parametrize("header", ["Bearer t1", "bearer t1", "BEARER   t1 "])
def test_a_token_is_sent_as_bearer(header: str, authenticator: Authenticator) -> None:
    assert authenticator.grant(header, not_asked).identity.name == "token:ci"


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (None, "no_credential"),
        ("", "bad_header"),
        ("t1", "bad_header"),
        ("Bearer", "bad_header"),
        ("Bearer ", "bad_header"),
        ("Basic dDE6", "bad_header"),
        ("Bearer t2", "unknown_token"),
        ("Bearer t1, Bearer t1", "unknown_token"),
        ("Bearer a.b.c", "unknown_token"),
        (f"Bearer {'t' * MAX_CREDENTIAL}", "bad_header"),
    ],
)
def test_anything_else_is_refused(
    header: str | None, why: str, authenticator: Authenticator
) -> None:
    assert refusal(authenticator, header) == why


def test_a_certificate_counts_where_there_is_no_token(authenticator: Authenticator) -> None:
    grant = authenticator.grant(None, lambda: ["other.test", "worker.test"])
    assert grant.identity.name == "certificate:worker.test"
    with pytest.raises(Unauthenticated) as caught:
        authenticator.grant(None, lambda: ["other.test"])
    assert caught.value.metadata[FACT] == "unknown_certificate"
    with pytest.raises(Unauthenticated):
        authenticator.grant("Bearer t2", lambda: ["worker.test"])


def test_a_change_of_the_file_ends_what_it_no_longer_allows(
    files: WatchedFiles[Entries], authenticator: Authenticator, tmp_path: Path
) -> None:
    grant = authenticator.grant("Bearer t1", nobody)
    assert authenticator.is_current(grant)
    replace(tmp_path / "tokens.toml", entry("ci", "t2", "infer"))
    files.look()
    assert not authenticator.is_current(grant)
    assert refusal(authenticator, "Bearer t1") == "unknown_token"
    assert authenticator.grant("Bearer t2", nobody).identity.name == "token:ci"


def test_a_jwt_is_verified_once_until_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = Signer()
    path = tmp_path / "keys.json"
    path.write_text(key_set([signer]))
    keys = WatchedFiles([path], parse_keys, field="jwt_jwks")
    now = [0.0]
    verified: list[str] = []

    def verify(text: str, *given: object) -> object:
        verified.append(text)
        return really(text, *given)  # type: ignore[arg-type]

    really = jwts.verify
    monkeypatch.setattr(jwts, "verify", verify)
    authenticator = Authenticator(None, keys, Rules(AUDIENCE), clock=lambda: now[0])
    header = f"Bearer {signer.sign(seconds=60)}"
    grant = authenticator.grant(header, nobody)
    assert authenticator.grant(header, nobody) is grant
    assert len(verified) == 1
    now[0] = grant.expires - 1
    assert authenticator.is_current(grant)
    now[0] = grant.expires
    assert not authenticator.is_current(grant)
    authenticator.grant(header, nobody)
    assert len(verified) == 2
    assert refusal(authenticator, f"Bearer {signer.sign(seconds=-LEEWAY_SECONDS - 1)}") == (
        "expired_jwt"
    )


def test_keys_rotate_with_the_file(tmp_path: Path) -> None:
    old, new = Signer("old"), Signer("new")
    path = tmp_path / "keys.json"
    path.write_text(key_set([old]))
    keys = WatchedFiles([path], parse_keys, field="jwt_jwks")
    authenticator = Authenticator(None, keys, Rules(AUDIENCE))
    headers = [f"Bearer {each.sign()}" for each in (old, new)]
    authenticator.grant(headers[0], nobody)
    for signers, valid in (([old, new], [True, True]), ([new], [False, True])):
        replace(path, key_set(signers))
        keys.look()
        for header, is_valid in zip(headers, valid, strict=True):
            if is_valid:
                authenticator.grant(header, nobody)
            else:
                assert refusal(authenticator, header) == "bad_jwt"


def test_what_is_remembered_is_bounded_and_never_a_strangers_text(
    files: WatchedFiles[Entries], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 4)
    replace(tmp_path / "tokens.toml", "".join(entry(f"n{i}", f"t{i}", "read") for i in range(20)))
    files.look()
    authenticator = Authenticator(files)
    for number in range(100):
        header = f"Bearer t{number}"
        if number < 20:
            assert authenticator.grant(header, nobody).identity.name == f"token:n{number}"
        else:
            refusal(authenticator, header)
    remembered = authenticator._state.remembered
    assert list(remembered) == [f"Bearer t{number}" for number in range(16, 20)]
