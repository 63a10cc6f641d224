"""Files with the server's certificate, from which Envoy reads it again when they are exchanged."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from headrace.server.transport.envoy.configuration import CERTIFICATE, CLIENT_CA, Paths, secret
from headrace.server.transport.tls import Certificate


def write_certificate(certificate: Certificate, paths: Paths) -> None:
    """Gives a new state of the certificate to Envoy.

    The server has checked it before, so that Envoy never sees a broken one. New connections use it.
    """
    chain, key, *client_ca = certificate.contents
    content = {"certificate_chain": _inline(chain), "private_key": _inline(key)}
    _exchange(paths.certificate, secret(CERTIFICATE, "tls_certificate", content))
    for authorities in client_ca:
        content = {"trusted_ca": _inline(authorities)}
        _exchange(paths.client_ca, secret(CLIENT_CA, "validation_context", content))


def _inline(data: bytes) -> dict[str, Any]:
    return {"inline_bytes": base64.b64encode(data).decode()}


def _exchange(path: Path, text: str) -> None:
    """Writes a file beside and moves it: Envoy looks for moves."""
    beside = path.with_suffix(".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    beside.replace(path)
