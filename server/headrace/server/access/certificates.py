"""The names in a client's certificate, which the transport has verified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def names_of_call(context: Any) -> Iterator[str]:
    """The names in the certificate of a gRPC call: alternative names first, then common names."""
    known: Mapping[str, Sequence[bytes]] = context.auth_context()
    for key in ("x509_subject_alternative_name", "x509_common_name"):
        for name in known.get(key, ()):
            yield name.decode("utf-8", "replace")


def names_of_connection(transport: Any) -> Iterator[str]:
    """The names in the certificate of an HTTP connection, in the same order."""
    ssl_object = transport.get_extra_info("ssl_object")
    certificate: Mapping[str, Any] = (ssl_object and ssl_object.getpeercert()) or {}
    for _, name in certificate.get("subjectAltName", ()):
        yield str(name)
    for attributes in certificate.get("subject", ()):
        for key, value in attributes:
            if key == "commonName":
                yield str(value)
