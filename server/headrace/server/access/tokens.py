"""The file of tokens: who has which roles, by a token's hash or a certificate's name."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headrace.runtime.errors import did_you_mean
from headrace.server.access.identity import Identity, Role
from headrace.server.toml import parse_toml

ROLES: Final = {role.name.lower(): role for role in Role if role is not Role.OPEN}
"""The roles that a credential may have, by the names that people write."""

TOKEN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}")
_CERTIFICATE_NAME = re.compile(r"[\x20-\x7e]{1,255}")
_START = 4
_NOBODY: tuple[bytes, Identity | None] = (bytes(32), None)
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Entries(NamedTuple):
    """The content of the file.

    Attributes:
        tokens: the hash and the identity of each token, by the start of the hash.
        certificates: the identity of each certificate, by its name.
    """

    tokens: Mapping[bytes, tuple[bytes, Identity]]
    certificates: Mapping[str, Identity]

    def of_token(self, token: str) -> Identity | None:
        """The identity of a token, or None if there is none.

        The time says at most whether some token's hash starts the same way. The rest of the hash
        is compared in constant time.
        """
        digest = _digest(token)
        known, identity = self.tokens.get(digest[:_START], _NOBODY)
        return identity if hmac.compare_digest(known, digest) else None


NO_ENTRIES: Final = Entries({}, {})


def token_hash(token: str) -> str:
    """The SHA-256 of a token's UTF-8, as the file holds it."""
    return _digest(token).hex()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def parse_entries(data: bytes) -> Entries:
    """Reads the file.

    Raises:
        ValueError: says which entry is wrong, and never a hash.
    """
    table = parse_toml(data)
    _refuse_unknown("table", table, ("token", "certificate"))
    tokens: dict[bytes, tuple[bytes, Identity]] = {}
    names: set[str] = set()
    for name, entry in _entries(table, "token", ("name", "sha256", "roles"), TOKEN_NAME):
        digest = entry.get("sha256")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest.lower()):
            raise ValueError(f"token {name!r}: sha256 must be 64 hexadecimal digits")
        key = bytes.fromhex(digest)
        if name in names or key[:_START] in tokens:
            raise ValueError(f"token {name!r}: its name or the start of its sha256 is there twice")
        names.add(name)
        tokens[key[:_START]] = key, Identity(f"token:{name}", _roles(f"token {name!r}", entry))
    certificates: dict[str, Identity] = {}
    for name, entry in _entries(table, "certificate", ("name", "roles"), _CERTIFICATE_NAME):
        if name in certificates:
            raise ValueError(f"certificate {name!r} is there twice")
        roles = _roles(f"certificate {name!r}", entry)
        certificates[name] = Identity(f"certificate:{name}", roles)
    return Entries(tokens, certificates)


def _entries(
    table: Mapping[str, Any], kind: str, keys: tuple[str, ...], form: re.Pattern[str]
) -> list[tuple[str, Mapping[str, Any]]]:
    entries = table.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise ValueError(f"{kind} must be tables; write [[{kind}]]")
    named = []
    for number, entry in enumerate(entries, 1):
        name = entry.get("name")
        if not isinstance(name, str) or not form.fullmatch(name):
            raise ValueError(f"[[{kind}]] number {number}: name must match {form.pattern}")
        _refuse_unknown(f"key of {kind} {name!r}", entry, keys)
        named.append((name, entry))
    return named


def _roles(what: str, entry: Mapping[str, Any]) -> frozenset[Role]:
    names = entry.get("roles")
    if not isinstance(names, list) or not names:
        raise ValueError(f"{what}: roles must be a list, as ['infer']")
    for name in names:
        if name not in ROLES:
            raise ValueError(f"{what}: unknown role{did_you_mean(str(name), ROLES)}")
    return frozenset(ROLES[name] for name in names)


def _refuse_unknown(what: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"unknown {what}: {key!r}{did_you_mean(key, known)}")
