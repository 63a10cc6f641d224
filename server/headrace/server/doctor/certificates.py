"""Checks the files of TLS: dates, chain, names, key."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from headrace.server.addresses import is_loopback
from headrace.server.doctor.finding import Finding, ok, problem, warning
from headrace.server.settings.settings import Settings
from headrace.server.transport.tls import read_certificate

_SOON: Final = timedelta(days=14)
_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not listened on


def check_tls_files(
    settings: Settings, name: str = "", now: datetime | None = None
) -> Iterator[Finding]:
    """
    Args:
        name: the name under which clients reach the server; default: the setting host.
        now: the time, with a zone.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return
    paths = [settings.tls_cert, settings.tls_key]
    if settings.tls_client_ca is not None:
        paths.append(settings.tls_client_ca)
    try:
        contents = [path.read_bytes() for path in paths]
        read_certificate(contents, paths)
        chain = x509.load_pem_x509_certificates(contents[0])
    except OSError as error:
        yield problem("tls", f"{error.filename}: {error.strerror}", "let the server's user read it")
        return
    except ValueError as error:
        yield problem("tls", str(error), "make a new one, for example with headrace tls new")
        return
    mode = stat.S_IMODE(settings.tls_key.stat().st_mode)
    if mode & 0o007:
        yield warning(
            "tls", f"{settings.tls_key} is open to every user", f"chmod 600 {settings.tls_key}"
        )
    yield from check_chain(chain, str(settings.tls_cert), name or _own_name(settings.host), now)
    for text in contents[2:]:
        for authority in x509.load_pem_x509_certificates(text):
            yield from _dates(authority, str(settings.tls_client_ca), now)


def check_chain(
    chain: Sequence[x509.Certificate], place: str, name: str = "", now: datetime | None = None
) -> Iterator[Finding]:
    """The dates of a server's certificates, whether each is signed by the next one, and the name.

    Args:
        place: where they come from.
        name: a name or an address that the first has to be for; "" if nobody knows one.
    """
    bad = [finding for certificate in chain for finding in _dates(certificate, place, now)]
    yield from bad
    for below, above in pairwise(chain):
        try:
            below.verify_directly_issued_by(above)
        except (ValueError, TypeError, InvalidSignature):
            yield problem(
                "tls",
                f"{place}: {_subject(below)} is not signed by the next one, {_subject(above)}",
                "put the server's certificate first, and then each one that signed the one before",
            )
            return
    names = _names(chain[0])
    if not names:
        yield problem(
            "tls",
            f"{place} names no host in subjectAltName, so that clients refuse it",
            "make a certificate with the names of the server",
        )
    elif name and not _is_for(names, name):
        yield problem(
            "tls",
            f"{place} is for {', '.join(names)}, and not for {name}",
            "make a certificate with that name, or have clients use one of the others",
        )
    elif not bad:
        expires = min(certificate.not_valid_after_utc for certificate in chain)
        yield ok("tls", f"{place} is for {', '.join(names)}, and valid until {expires:%Y-%m-%d}")


def _dates(certificate: x509.Certificate, place: str, now: datetime | None) -> Iterator[Finding]:
    now = now or datetime.now(UTC)
    expires, who = certificate.not_valid_after_utc, _subject(certificate)
    if expires <= now:
        yield problem("tls", f"{place}: {who} expired on {expires:%Y-%m-%d %H:%M} UTC", "renew it")
    elif certificate.not_valid_before_utc > now:
        since = certificate.not_valid_before_utc
        yield problem(
            "tls",
            f"{place}: {who} is valid only from {since:%Y-%m-%d %H:%M} UTC on",
            "set the clock, or wait",
        )
    elif expires - now < _SOON:
        days = (expires - now).days
        yield warning("tls", f"{place}: {who} expires in {days} days", "renew it now")


def _subject(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string()[:200] or "a certificate without a name"


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def _is_for(names: Sequence[str], name: str) -> bool:
    try:
        address = str(ipaddress.ip_address(name))
    except ValueError:
        wanted = name.lower().rstrip(".")
        above = wanted.partition(".")[2]
        return any(each.lower() in (wanted, f"*.{above}") for each in names)
    return address in names


def _own_name(host: str) -> str:
    """The name that a certificate has to have, if the setting host tells it."""
    return "" if host in _EVERY_ADDRESS or is_loopback(host) else host
