"""Changes the file of tokens, and keeps its comments and order."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from headrace.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    did_you_mean,
)
from headrace.runtime.system.atomic_file import read_file, write_file
from headrace.server.access.tokens import ROLES, TOKEN_NAME, Entries, parse_entries, token_hash
from headrace.server.access.watched import MAX_BYTES

PREFIX: Final = "hr_"
"""The start of each new token, so that tools that look for leaked secrets can find it."""

_TOKEN_BYTES = 32
_MODE = 0o600
_HEADER = re.compile(r"\s*\[\[\s*(token|certificate)\s*\]\]")
_BLANK = re.compile(r"\s*(#.*)?")
_NOBODY = "# No token is valid.\n"
"""What is left when the only entry goes: a server takes an emptied file for a damaged one."""


class TokenEntry(NamedTuple):
    """An entry of the file: token or certificate, its name and its roles."""

    kind: str
    name: str
    roles: tuple[str, ...]


def add_token(path: Path, name: str, roles: Sequence[str]) -> str:
    """Adds a token with a new random secret, and returns the secret. The file holds only its hash.

    Raises:
        InvalidArgument: the name or a role is not valid, or the file is not.
        AlreadyExists: there is a token of this name.
    """
    if not TOKEN_NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is not a name: use up to 128 letters, digits and . _ @ / -", field="NAME"
        )
    if not roles:
        raise InvalidArgument(f"give at least one role of {', '.join(ROLES)}", field="roles")
    for role in roles:
        if role not in ROLES:
            raise InvalidArgument(
                f"unknown role {role!r}{did_you_mean(role, ROLES)}", field="roles"
            )
    token = f"{PREFIX}{secrets.token_urlsafe(_TOKEN_BYTES)}"

    def add(text: str, names: Sequence[str]) -> str:
        if name in names:
            raise AlreadyExists(
                f"there is a token {name!r} already; revoke it first, or choose another name, so "
                "that both work while clients change",
                field="NAME",
            )
        space = "\n" if text.strip() else ""
        written = json.dumps(list(roles))
        entry = f'[[token]]\nname = "{name}"\nsha256 = "{token_hash(token)}"\nroles = {written}\n'
        return f"{text.rstrip()}\n{space}{entry}" if space else entry

    _change(path, add, create=True)
    return token


def revoke_token(path: Path, name: str) -> None:
    """Removes a token.

    Raises:
        InvalidArgument: the file cannot be read, or is not valid.
        NotFound: there is no token of this name.
    """

    def remove(text: str, names: Sequence[str]) -> str:
        if name not in names:
            raise NotFound.unknown("token", name, names, field="NAME")
        left = _without(text, names.index(name))
        return left if left.strip() else _NOBODY

    _change(path, remove, create=False)


def list_tokens(path: Path) -> list[TokenEntry]:
    """The entries of the file, without their hashes.

    Raises:
        InvalidArgument: the file cannot be read, or is not valid.
    """
    entries = _parsed(path, _content(path))
    identities = [identity for _, identity in entries.tokens.values()]
    listed = []
    for each in (*identities, *entries.certificates.values()):
        kind, _, name = each.name.partition(":")
        listed.append(
            TokenEntry(kind, name, tuple(role.name.lower() for role in sorted(each.roles)))
        )
    return listed


def _change(path: Path, change: Callable[[str, Sequence[str]], str], *, create: bool) -> None:
    """Changes the file, while no other `headrace token` does.

    The new file has the permissions and, where the system allows it, the owner of the old one.

    Args:
        change: makes the new text from the old one and the names of its tokens in order.
    """
    path = path.resolve()  # replaces the file that a link points to, not the link
    descriptor = _locked(path, create=create)
    try:
        before = _content(path)
        names = _names(_parsed(path, before))
        data = change(before.decode(), names).encode()
        if len(set(names) ^ set(_names(_parsed(path, data)))) != 1:
            raise InvalidArgument(
                f"{path} does not write its tokens as [[token]] tables; change it by hand",
                field="tokens",
            )
        if len(data) > MAX_BYTES:
            raise FailedPrecondition(
                f"{path} would have more than {MAX_BYTES} bytes, which the server does not read; "
                "revoke tokens that nobody uses"
            )
        status = os.fstat(descriptor)
        owner = None if status.st_uid == os.geteuid() else (status.st_uid, status.st_gid)
        _write(path, data, stat.S_IMODE(status.st_mode), owner)
    finally:
        os.close(descriptor)


def _without(text: str, index: int) -> str:
    """The text without one [[token]]. All comments outside of it stay."""
    lines = text.splitlines(keepends=True)
    headers = [
        (number, match[1]) for number, line in enumerate(lines) if (match := _HEADER.match(line))
    ]
    tokens = [number for number, kind in headers if kind == "token"]
    if index >= len(tokens):
        return text
    first = tokens[index]
    end = next((number for number, _ in headers if number > first), len(lines))
    while _BLANK.fullmatch(lines[end - 1].rstrip("\r\n")):
        end -= 1
    return "".join(lines[:first] + lines[end:])


def _names(entries: Entries) -> list[str]:
    return [identity.name.partition(":")[2] for _, identity in entries.tokens.values()]


def _write(path: Path, data: bytes, mode: int, owner: tuple[int, int] | None) -> None:
    try:
        write_file(path, data, mode=mode)
        if owner is not None:
            os.chown(path, *owner)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}", field="tokens") from error


def _locked(path: Path, *, create: bool) -> int:
    """Opens the file and locks it. Another process may have replaced it meanwhile."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    while True:
        try:
            descriptor = os.open(path, flags, _MODE)
        except OSError as error:
            raise InvalidArgument(
                f"cannot open {path}: {error.strerror}", field="tokens"
            ) from error
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _content(path: Path) -> bytes:
    try:
        return read_file(path, MAX_BYTES)
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}", field="tokens") from error


def _parsed(path: Path, data: bytes) -> Entries:
    try:
        return parse_entries(data)
    except ValueError as error:
        raise InvalidArgument(f"{path}: {error}", field="tokens") from error
