from __future__ import annotations

import ssl
from typing import Any
from unittest.mock import MagicMock

import pytest

from headrace.server.access.certificates import names_of, names_of_call, names_of_connection
from tests.support.certificates import Authority, Pair


def by_both_ports(pair: Pair) -> tuple[Any, Any]:
    call, transport = MagicMock(), MagicMock()
    call.certificate.return_value = pair.certificate
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.decode())
    transport.get_extra_info.return_value.getpeercert.return_value = der
    return names_of_call(call), names_of_connection(transport)


@pytest.mark.parametrize("name", ["worker.test", "admin\0.example.com", "admin ", "ADMIN"])
def test_a_name_is_read_whole_on_both_ports(name: str) -> None:
    authority = Authority()
    for pair, names in (
        (authority.client(name), (name,)),
        (authority.client("x", names=(name, "b.test")), (name, "b.test", "x")),
    ):
        assert by_both_ports(pair) == (names, names)


def test_a_connection_without_a_certificate_has_no_names() -> None:
    call, transport = MagicMock(), MagicMock()
    call.certificate.return_value = None
    transport.get_extra_info.return_value = None
    assert names_of_call(call) == names_of_connection(transport) == ()


@pytest.mark.parametrize("broken", [b"\0", b"-----BEGIN CERTIFICATE-----\nAA==\n"])
def test_a_certificate_that_cannot_be_read_has_no_names(broken: bytes) -> None:
    assert names_of(broken) == ()
