from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
import pytest

from headrace.runtime.errors import Unauthenticated
from headrace.server.access.identity import Role
from headrace.server.access.jwts import LEEWAY_SECONDS, PublicKey, Rules, parse_keys, verify
from headrace.server.access.refusal import FACT
from tests.support.tokens import AUDIENCE, ISSUER, Signer, key_set

RULES = Rules(AUDIENCE)


def keys_of(*signers: Signer) -> tuple[PublicKey, ...]:
    return parse_keys(key_set(signers).encode())


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


@pytest.fixture(scope="module")
def keys(signer: Signer) -> tuple[PublicKey, ...]:
    return keys_of(signer)


def refusal(text: str, keys: tuple[PublicKey, ...], rules: Rules = RULES) -> str:
    with pytest.raises(Unauthenticated) as caught:
        verify(text, keys, rules)
    assert text not in caught.value.message
    return caught.value.metadata[FACT]


def encoded(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_jwt_gives_its_issuer_and_subject_as_name_and_its_roles(algorithm: str) -> None:
    signer = Signer(algorithm=algorithm)
    identity, expires = verify(signer.sign(("infer", "other")), keys_of(signer), RULES)
    assert identity.name == "jwt:https%3A//issuer.test:alice"
    assert identity.roles == {Role.INFER}
    assert expires - LEEWAY_SECONDS == pytest.approx(time.time() + 600, abs=60)


def test_two_issuers_and_subjects_never_have_one_name(signer: Signer) -> None:
    keys = keys_of(signer)
    pairs = [("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c")]
    names = [verify(signer.sign(iss=i, sub=s), keys, RULES)[0].name for i, s in pairs]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("read infer", {Role.READ, Role.INFER}),
        (["manage", "manage"], {Role.MANAGE}),
        (["open", "OPEN", "", 1, None], set()),
        ({"infer": True}, set()),
        (None, set()),
    ],
)
def test_roles_are_a_list_or_words(
    roles: Any, expected: set[Role], signer: Signer, keys: tuple[PublicKey, ...]
) -> None:
    assert verify(signer.sign(roles), keys, RULES)[0].roles == expected


def test_the_claim_with_the_roles_may_have_any_name_or_be_nested(
    signer: Signer, keys: tuple[PublicKey, ...]
) -> None:
    nested_roles: dict[str, Any] = {
        "https://a.b/roles": ["read"],
        "realm": {"roles": ["infer"]},
    }
    text = signer.sign(None, **nested_roles)
    flat, nested = (Rules(AUDIENCE, "", name) for name in ("https://a.b/roles", "realm.roles"))
    assert verify(text, keys, flat)[0].roles == {Role.READ}
    assert verify(text, keys, nested)[0].roles == {Role.INFER}


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"seconds": -LEEWAY_SECONDS - 5}, "expired_jwt"),
        ({"exp": None}, "bad_jwt"),
        ({"exp": "soon"}, "bad_jwt"),
        ({"nbf": int(time.time() + 3600)}, "bad_jwt"),
        ({"aud": "another"}, "foreign_jwt"),
        ({"aud": ["another"]}, "foreign_jwt"),
        ({"aud": None}, "bad_jwt"),
        ({"sub": None}, "bad_jwt"),
        ({"sub": ""}, "bad_jwt"),
        ({"sub": "a\nb"}, "bad_jwt"),
        ({"sub": "x" * 256}, "bad_jwt"),
        ({"iss": "a\nb"}, "bad_jwt"),
    ],
)
def test_a_jwt_with_wrong_claims_is_refused(
    claims: dict[str, Any], why: str, signer: Signer, keys: tuple[PublicKey, ...]
) -> None:
    assert refusal(signer.sign(**claims), keys) == why


def test_a_jwt_may_have_several_audiences(signer: Signer, keys: tuple[PublicKey, ...]) -> None:
    verify(signer.sign(aud=["another", AUDIENCE]), keys, RULES)


@pytest.mark.parametrize("issuer", [None, "https://other.test"])
def test_another_issuer_is_refused_where_one_is_set(
    issuer: str | None, signer: Signer, keys: tuple[PublicKey, ...]
) -> None:
    rules = Rules(AUDIENCE, ISSUER)
    verify(signer.sign(), keys, rules)
    assert refusal(signer.sign(iss=issuer), keys, rules) == "bad_jwt"


def test_a_jwt_of_a_key_that_is_not_in_the_file_is_refused(keys: tuple[PublicKey, ...]) -> None:
    assert refusal(Signer().sign(), keys) == "bad_jwt"
    assert refusal(Signer("2").sign(), keys) == "bad_jwt"


def test_the_key_with_the_jwts_identifier_verifies_it() -> None:
    old, new = Signer("old"), Signer("new")
    keys = keys_of(old, new)
    for each in (old, new):
        verify(each.sign(), keys, RULES)
    old.identifier = "new"
    assert refusal(old.sign(), keys) == "bad_jwt"


def test_a_jwt_without_signature_is_refused(signer: Signer, keys: tuple[PublicKey, ...]) -> None:
    _, claims, _ = signer.sign().split(".")
    for algorithm in ("none", "None", "NONE", ""):
        header = encoded({"alg": algorithm, "typ": "JWT", "kid": "1"})
        assert refusal(f"{header}.{claims}.", keys) == "bad_jwt"


def test_a_public_key_used_as_a_shared_secret_is_refused() -> None:
    """The classical confusion: HS256 with the text of the public key as secret."""
    signer = Signer(algorithm="RS256")
    _, claims, _ = signer.sign().split(".")
    head = f"{encoded({'alg': 'HS256', 'kid': '1'})}.{claims}"
    for secret in (json.dumps(signer.jwk()), signer.jwk()["n"]):
        signature = hmac.new(secret.encode(), head.encode(), hashlib.sha256).digest()
        assert refusal(f"{head}.{encoded(signature)}", keys_of(signer)) == "bad_jwt"


def test_a_key_that_comes_with_the_jwt_is_not_used(keys: tuple[PublicKey, ...]) -> None:
    attacker = Signer()
    _, claims, _ = attacker.sign().split(".")
    head = f"{encoded({'alg': 'ES256', 'kid': '1', 'jwk': attacker.jwk()})}.{claims}"
    algorithm: Any = jwt.get_algorithm_by_name("ES256")
    signature = encoded(algorithm.sign(head.encode(), attacker.key))
    assert refusal(f"{head}.{signature}", keys) == "bad_jwt"


@pytest.mark.parametrize(
    "text",
    [
        "..",
        "a.b.c",
        f"{encoded([])}.{encoded({})}.",
        f"{encoded(b'[' * 5000)}.{encoded({})}.{encoded(b'x')}",
        f"{encoded({'alg': ['ES256'], 'kid': '1'})}.{encoded({})}.{encoded(b'x')}",
        f"{encoded({'alg': 'ES256', 'kid': {}})}.{encoded({})}.{encoded(b'x')}",
        f"{encoded({'alg': 'ES256', 'crit': ['b64'], 'b64': False})}.{encoded({})}.{encoded(b'')}",
        "é.é.é",
        "\ud800.a.b",
    ],
)
def test_a_text_that_is_no_jwt_is_refused_and_raises_nothing_else(
    text: str, keys: tuple[PublicKey, ...]
) -> None:
    assert refusal(text, keys) == "bad_jwt"


def test_a_key_verifies_only_with_the_algorithm_that_it_names() -> None:
    signer = Signer(algorithm="RS256")
    data = json.dumps({"keys": [signer.jwk(alg="RS512")]})
    assert refusal(signer.sign(), parse_keys(data.encode())) == "bad_jwt"


def test_keys_for_encryption_and_of_unknown_kinds_are_passed_over(signer: Signer) -> None:
    entries = [signer.jwk(use="enc"), {"kty": "new"}, signer.jwk()]
    (key,) = parse_keys(json.dumps({"keys": entries}).encode())
    assert key.algorithms == {"ES256"}


SMALL = {"kty": "RSA", "n": encoded(b"\xff" * 128), "e": "AQAB"}


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([{"kty": "oct", "k": "c2VjcmV0"}], "public keys only"),
        ([{**SMALL, "d": "AQAB"}], "public keys only"),
        ([SMALL], "1024 bits"),
        ([{"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"}], "not a valid key"),
        ([], "no key here"),
        ([{"kty": "new"}], "no key here"),
        ([1], "not a JSON Web Key Set"),
        ("x", "not a JSON Web Key Set"),
        ([{"kty": "new"}] * 101, "101 keys"),
    ],
)
def test_a_file_without_usable_keys_is_refused(entries: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        parse_keys(json.dumps({"keys": entries}).encode())
    assert "c2VjcmV0" not in str(caught.value)
