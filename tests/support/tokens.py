"""Credentials for tests: entries of a file of tokens, and JWTs with their keys."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from headrace.server.access.tokens import token_hash

AUDIENCE = "headrace.test"
ISSUER = "https://issuer.test"

_SIGNERS = {
    "RS256": lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


def entry(name: str, token: str, *roles: str) -> str:
    """One [[token]] of the file."""
    return (
        f'[[token]]\nname = "{name}"\nsha256 = "{token_hash(token)}"\nroles = {json.dumps(roles)}\n'
    )


def certificate_entry(name: str, *roles: str) -> str:
    """One [[certificate]] of the file."""
    return f'[[certificate]]\nname = "{name}"\nroles = {json.dumps(roles)}\n'


def replace(path: Path, text: str) -> None:
    """Replaces a file at once, as `headrace token` does."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class Signer:
    """An issuer of JWTs with one key."""

    def __init__(self, identifier: str = "1", algorithm: str = "ES256") -> None:
        self.identifier = identifier
        self.algorithm = algorithm
        self.key: Any = _SIGNERS[algorithm]()

    def jwk(self, **more: Any) -> dict[str, Any]:
        """The public key, as an entry of a key set."""
        kind: Any = jwt.get_algorithm_by_name(self.algorithm)
        public = kind.to_jwk(self.key.public_key(), as_dict=True)
        return {**public, "kid": self.identifier, "use": "sig", **more}

    def sign(self, roles: Any = ("infer",), seconds: float = 600, **claims: Any) -> str:
        """A JWT that ends in some seconds. A claim that is None is left out."""
        said: Mapping[str, Any] = {
            "iss": ISSUER,
            "sub": "alice",
            "aud": AUDIENCE,
            "exp": int(time.time() + seconds),
            "roles": list(roles) if isinstance(roles, tuple) else roles,
            **claims,
        }
        given = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(given, self.key, self.algorithm, headers={"kid": self.identifier})


def key_set(signers: Iterable[Signer]) -> str:
    """A file of keys."""
    return json.dumps({"keys": [each.jwk() for each in signers]})
