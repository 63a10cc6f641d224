"""Why a caller is refused, and the errors that say so."""

from __future__ import annotations

import enum

from headrace.runtime.errors import HeadraceError, PermissionDenied, Unauthenticated
from headrace.server.access.identity import CALLER, STRANGER, Identity, Role

FACT = "refusal"
"""The key of the reason among the facts of an error."""


class Refusal(enum.StrEnum):
    """Why a credential does not open a call. The metric of refusals has these labels."""

    NO_CREDENTIAL = "no_credential"
    BAD_HEADER = "bad_header"
    UNKNOWN_TOKEN = "unknown_token"  # noqa: S105 - a reason
    BAD_JWT = "bad_jwt"
    EXPIRED_JWT = "expired_jwt"
    FOREIGN_JWT = "foreign_jwt"
    UNKNOWN_CERTIFICATE = "unknown_certificate"
    ROLE = "role"


# The texts are for strangers too: they say nothing about what is configured.
_TEXTS = {
    Refusal.NO_CREDENTIAL: "this needs a credential; send 'authorization: Bearer TOKEN'",
    Refusal.BAD_HEADER: "the authorization is not understood; send it once, as "
    "'authorization: Bearer TOKEN'",
    Refusal.UNKNOWN_TOKEN: "the token is not valid; it may be mistyped or revoked, so ask the "
    "server's operator for a new one",
    Refusal.BAD_JWT: "the JWT is not valid; get a new one from your identity provider",
    Refusal.EXPIRED_JWT: "the JWT has expired; get a new one from your identity provider",
    Refusal.FOREIGN_JWT: "the JWT is meant for another audience; ask your identity provider for "
    "one for this server",
    Refusal.UNKNOWN_CERTIFICATE: "the client certificate has no roles here; ask the server's "
    "operator for an entry, or send 'authorization: Bearer TOKEN'",
}


def refused(why: Refusal) -> Unauthenticated:
    """The error for a caller whose credential is missing or not valid."""
    return Unauthenticated(_TEXTS[why], metadata={FACT: why.value})


def require(role: Role, caller: Identity | None = None) -> None:
    """Checks the role of a caller, by default the one that this task serves.

    Raises:
        Unauthenticated: the caller has sent no valid credential.
        PermissionDenied: the caller's role is too small.
    """
    caller = caller or CALLER.get()
    if caller.may(role):
        return
    if caller is STRANGER:
        raise refused(Refusal.NO_CREDENTIAL)
    raise PermissionDenied(
        f"this needs the role {role.name.lower()}; ask the server's operator for a credential that "
        "has it",
        metadata={FACT: Refusal.ROLE.value, "role": role.name.lower()},
    )


def reason_of(error: BaseException) -> str | None:
    """The reason of a refusal. None if the error is not a refusal of a credential or role."""
    return error.metadata.get(FACT) if isinstance(error, HeadraceError) else None
