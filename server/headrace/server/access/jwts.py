"""JSON Web Tokens: signatures by the keys of a file, and the claims that make an identity."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from headrace.server.access.identity import Identity, Role
from headrace.server.access.refusal import Refusal, refused
from headrace.server.access.tokens import ROLES

LEEWAY_SECONDS: Final = 10
"""The difference between the issuer's clock and the server's that is tolerated."""

_LEAST_RSA_BITS = 2048
_MOST_RSA_BITS = 8192
_MAX_NAME = 255
_MAX_KEYS = 100
_KINDS: Mapping[str, Any] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}
_CURVES: Mapping[str, str] = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})


class PublicKey(NamedTuple):
    """A public key.

    Attributes:
        identifier: the ``kid`` of the key, "" if it has none.
        algorithms: the algorithms that it may verify. All of them are asymmetric.
    """

    identifier: str
    public: Any
    algorithms: frozenset[str]


def parse_keys(data: bytes) -> tuple[PublicKey, ...]:
    """Reads a JSON Web Key Set. Keys for encryption and of unknown kinds are passed over.

    Raises:
        ValueError: there is a secret key in it, or no key that can verify a signature.
    """
    try:
        entries = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        entries = None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError('this is not a JSON Web Key Set; it starts with {"keys": [')
    if len(entries) > _MAX_KEYS:
        raise ValueError(f"there are {len(entries)} keys; remove old ones, {_MAX_KEYS} are allowed")
    keys = [key for number, entry in enumerate(entries, 1) if (key := _key(number, entry))]
    if not keys:
        raise ValueError("no key here can verify a signature; give RSA, EC or OKP keys")
    return tuple(keys)


def _key(number: int, entry: Mapping[str, Any]) -> PublicKey | None:
    if entry.get("kty") == "oct" or "d" in entry:
        raise ValueError(
            f"key {number} is secret: whoever can verify with it can sign; give public keys only"
        )
    algorithm = _KINDS.get(str(entry.get("kty")))
    if algorithm is None or entry.get("use", "sig") != "sig":
        return None
    try:
        public = algorithm.from_jwk(dict(entry))
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise ValueError(f"key {number} is not a valid key") from error
    allowed = _algorithms(number, public)
    if "alg" in entry:
        allowed &= {str(entry["alg"])}
    return PublicKey(str(entry.get("kid", "")), public, allowed) if allowed else None


def _algorithms(number: int, public: Any) -> frozenset[str]:
    if isinstance(public, rsa.RSAPublicKey):
        if not _LEAST_RSA_BITS <= public.key_size <= _MOST_RSA_BITS:
            raise ValueError(
                f"key {number} has {public.key_size} bits; RSA needs {_LEAST_RSA_BITS} to "
                f"{_MOST_RSA_BITS}"
            )
        return _RSA
    if isinstance(public, ec.EllipticCurvePublicKey):
        return frozenset(filter(None, [_CURVES.get(public.curve.name)]))
    if isinstance(public, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        return frozenset({"EdDSA"})
    return frozenset()


@dataclass(frozen=True, slots=True)
class Rules:
    """What a JWT must say.

    Attributes:
        audience: must be the claim ``aud``, or one of its values.
        issuer: must be the claim ``iss``. "" allows any issuer whose key is in the file.
        roles_claim: the claim with the roles. If there is none of this name, dots separate the
            names of nested claims.
    """

    audience: str
    issuer: str = ""
    roles_claim: str = "roles"


def verify(text: str, keys: Sequence[PublicKey], rules: Rules) -> tuple[Identity, float]:
    """The identity that a JWT gives, and the Unix time of its end, in seconds.

    Raises:
        Unauthenticated: the JWT is not valid, has expired, or is meant for another server.
    """
    try:
        claims = _claims(text, keys, rules)
        expires = float(claims["exp"]) + LEEWAY_SECONDS
        return _identity(claims, rules), expires
    except jwt.ExpiredSignatureError:
        raise refused(Refusal.EXPIRED_JWT) from None
    except jwt.InvalidAudienceError:
        raise refused(Refusal.FOREIGN_JWT) from None
    except Exception:  # noqa: BLE001 - a stranger wrote the text that the libraries parse
        raise refused(Refusal.BAD_JWT) from None


def _claims(text: str, keys: Sequence[PublicKey], rules: Rules) -> Mapping[str, Any]:
    header = jwt.get_unverified_header(text)
    if "crit" in header:
        raise ValueError("nothing critical is understood")
    identifier, algorithm = header.get("kid"), str(header.get("alg"))
    fitting = [
        key
        for key in keys
        if algorithm in key.algorithms and (identifier is None or identifier == key.identifier)
    ]
    if len(fitting) != 1:
        raise ValueError("not exactly one key fits")
    (key,) = fitting
    return jwt.decode(
        text,
        key=key.public,
        algorithms=[algorithm],
        audience=rules.audience,
        issuer=rules.issuer or None,
        leeway=LEEWAY_SECONDS,
        options={"require": ["exp", "aud", "sub", *(["iss"] if rules.issuer else [])]},
    )


def _identity(claims: Mapping[str, Any], rules: Rules) -> Identity:
    issuer, subject = claims.get("iss", ""), claims["sub"]
    for claim in (issuer, subject):
        if not isinstance(claim, str) or len(claim) > _MAX_NAME or not claim.isprintable():
            raise ValueError("not a name")
    if not subject:
        raise ValueError("the subject is empty")
    # Without its own colons, an issuer cannot run into a subject.
    return Identity(f"jwt:{quote(issuer, safe='/')}:{subject}", _roles(claims, rules.roles_claim))


def _roles(claims: Mapping[str, Any], name: str) -> frozenset[Role]:
    value: Any = claims.get(name)
    if value is None:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    names = value.split() if isinstance(value, str) else value
    if not isinstance(names, list):
        return frozenset()
    return frozenset(ROLES[each] for each in names if isinstance(each, str) and each in ROLES)
