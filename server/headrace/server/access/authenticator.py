"""Finds the identity that a credential gives, from the watched files of tokens and keys."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.server.access.identity import Identity
from headrace.server.access.refusal import Refusal, refused
from headrace.server.access.tokens import NO_ENTRIES, Entries, parse_entries
from headrace.server.access.watched import WatchedFiles, Watcher
from headrace.server.settings.settings import Settings

if TYPE_CHECKING:  # a server without JWTs does without its 10 MB
    from headrace.server.access.jwts import PublicKey, Rules

MAX_CREDENTIAL: Final = 8192
"""The most characters of a header with a credential."""

_REMEMBERED = 1024


class Grant(NamedTuple):
    """What a credential gives.

    Attributes:
        identity: the caller.
        expires: the Unix time in seconds from which it gives nothing.
        generation: the state of the files that gave it.
    """

    identity: Identity
    expires: float
    generation: object


class _State:
    """One state of the files, and the credentials that were valid in it."""

    __slots__ = ("entries", "keys", "remembered")

    def __init__(self, entries: Entries, keys: Sequence[PublicKey]) -> None:
        self.entries = entries
        self.keys = keys
        self.remembered: dict[str, Grant] = {}


class Authenticator:
    """Knows the callers of one server. Any thread may call it.

    A valid credential is remembered until a file changes or the credential expires. So most checks
    are one look-up in a dictionary. A credential that is not valid is never remembered, so
    strangers cannot fill the memory.

    Args:
        entries: the file of tokens and certificates, if there is one.
        keys: the file of keys for JWTs, if there is one.
        rules: what a JWT must say, if there are keys.
        clock: the Unix time in seconds.
    """

    def __init__(
        self,
        entries: WatchedFiles[Entries] | None,
        keys: WatchedFiles[tuple[PublicKey, ...]] | None = None,
        rules: Rules | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._entries = entries
        self._keys = keys
        self._rules = rules
        self._clock = clock
        self.refresh()
        for files in (entries, keys):
            if files is not None:
                files.on_change = self.refresh

    def refresh(self, _: object = None) -> None:
        """Takes the new values of the files. All credentials are checked anew from now on."""
        entries = self._entries.value if self._entries is not None else NO_ENTRIES
        self._state = _State(entries, self._keys.value if self._keys is not None else ())

    def is_current(self, grant: Grant) -> bool:
        """Whether nothing has changed since the grant was given, and it has not expired."""
        return grant.generation is self._state and self._clock() < grant.expires

    def grant(self, authorization: str | None, names: Callable[[], Iterable[str]]) -> Grant:
        """What a caller's credential gives.

        Args:
            authorization: the header with the credential. It counts before a certificate.
            names: returns the names in the verified certificate of the caller's connection.

        Raises:
            Unauthenticated: there is no credential, or it is not valid.
        """
        state = self._state
        if authorization is None:
            return self._of_certificate(state, names)
        known = state.remembered.get(authorization)
        if known is not None and self._clock() < known.expires:
            return known
        grant = self._of_header(state, authorization)
        remembered = state.remembered
        # gRPC's and HTTP's threads both do this, so the keys are copied, which is one step.
        for oldest in list(remembered)[: max(0, len(remembered) - _REMEMBERED + 1)]:
            remembered.pop(oldest, None)
        remembered[authorization] = grant
        return grant

    def _of_header(self, state: _State, authorization: str) -> Grant:
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(authorization) > MAX_CREDENTIAL:
            raise refused(Refusal.BAD_HEADER)
        identity = state.entries.of_token(token)
        if identity is not None:
            return Grant(identity, math.inf, state)
        if self._rules is not None and state.keys and token.count(".") == 2:
            from headrace.server.access.jwts import verify

            identity, expires = verify(token, state.keys, self._rules)
            return Grant(identity, expires, state)
        raise refused(Refusal.UNKNOWN_TOKEN)

    @staticmethod
    def _of_certificate(state: _State, names: Callable[[], Iterable[str]]) -> Grant:
        known = state.entries.certificates
        given = tuple(names()) if known else ()
        for name in given:
            if name in known:
                return Grant(known[name], math.inf, state)
        raise refused(Refusal.UNKNOWN_CERTIFICATE if given else Refusal.NO_CREDENTIAL)


def authenticator(settings: Settings, watcher: Watcher) -> Authenticator | None:
    """Knows the callers, as the settings say. None if callers need no credentials."""
    entries: WatchedFiles[Entries] | None = None
    keys: WatchedFiles[tuple[PublicKey, ...]] | None = None
    if settings.tokens is not None:
        entries = WatchedFiles([settings.tokens], parse_entries, field="tokens")
        watcher.add(entries)
    rules: Rules | None = None
    if settings.jwt_jwks is not None:
        from headrace.server.access.jwts import Rules, parse_keys

        keys = WatchedFiles([settings.jwt_jwks], parse_keys, field="jwt_jwks")
        watcher.add(keys)
        rules = Rules(settings.jwt_audience, settings.jwt_issuer, settings.jwt_roles_claim)
    if entries is None and keys is None:
        return None
    return Authenticator(entries, keys, rules)
