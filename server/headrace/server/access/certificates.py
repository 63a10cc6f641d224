"""The names in a client's certificate, which the transport has verified."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headrace.server.transport.call import IncomingCall

if TYPE_CHECKING:  # a server without TLS does without its 8 MB
    from cryptography import x509

_REMEMBERED = 1024
_PEM = b"-----BEGIN"


def names_of_call(context: IncomingCall) -> Sequence[str]:
    """The names in the certificate of a gRPC call: alternative names first, then common names.

    gRPC lists names too, but cuts each off at its first zero byte. Then ``admin`` could not be told
    from ``admin\\0.example.com``.
    """
    certificate = context.certificate()
    return () if certificate is None else names_of(certificate)


def names_of_connection(transport: Any) -> Sequence[str]:
    """The names in the certificate of an HTTP connection, in the same order."""
    ssl_object = transport.get_extra_info("ssl_object")
    certificate = ssl_object and ssl_object.getpeercert(binary_form=True)
    return names_of(certificate) if certificate else ()


@lru_cache(maxsize=_REMEMBERED)
def names_of(certificate: bytes) -> tuple[str, ...]:
    """The names in a certificate in PEM or DER form. Empty if they cannot be read."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    pem = certificate.startswith(_PEM)
    load = x509.load_pem_x509_certificate if pem else x509.load_der_x509_certificate
    try:
        parsed = load(certificate)
        common = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return (*_alternative(parsed), *(str(attribute.value) for attribute in common))
    except ValueError:
        return ()


def _alternative(certificate: x509.Certificate) -> list[str]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    plain = (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier, x509.IPAddress)
    return [str(name.value) for name in names if isinstance(name, plain)]
