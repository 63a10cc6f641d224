"""Whether the server will be able to listen."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.server.addresses import check_address, check_exposure, shown_address
from headrace.server.settings.settings import Settings

V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_is_free_once_it_was_looked_at(taken: int) -> None:
    with pytest.raises(InvalidArgument, match="Address already in use") as caught:
        check_address("http_port", "127.0.0.1", taken)
    assert caught.value.field == "http_port"
    for _ in range(2):
        check_address("port", "127.0.0.1", 0)


@pytest.mark.parametrize("name", ["no.host.invalid", "x" * 300, "a..b"])
def test_a_name_that_nothing_is_known_under_is_the_hosts_fault(name: str) -> None:
    with pytest.raises(InvalidArgument, match="no host has that name") as caught:
        check_address("http_port", name, 0)
    assert caught.value.field == "http_host"


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch, taken: int) -> int:
    """Every name stands for an address that is taken and one that this machine has not."""
    ours, foreign = ("127.0.0.1", taken), ("2001:db8::1", taken, 0, 0)
    found = [(family, 1, 6, "", address) for family, address in ((V6, foreign), (V4, ours))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    return taken


def test_of_several_addresses_one_in_use_is_what_is_told(two_addresses: int) -> None:
    with pytest.raises(InvalidArgument, match="in use") as caught:
        check_address("port", "localhost", two_addresses)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EADDRINUSE


def test_an_address_that_the_machine_lacks_does_not_matter_beside_one_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [(V6, 1, 6, "", ("2001:db8::1", 0, 0, 0)), (V4, 1, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    check_address("port", "localhost", 0)


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert shown_address("::1", 9000) == "[::1]:9000"
    assert shown_address("localhost", 9000) == "localhost:9000"


# -- safe by default --

SECURE = {"tls_cert": Path("c"), "tls_key": Path("k"), "tokens": Path("t")}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "no-such-host.invalid"])
@pytest.mark.parametrize(
    ("given", "lacking"),
    [
        ((), "no TLS and no access control"),
        (("tokens",), "no TLS"),
        (("tls_cert", "tls_key"), "no access control"),
    ],
)
def test_a_server_that_others_reach_needs_tls_and_access_control(
    host: str, given: tuple[str, ...], lacking: str
) -> None:
    chosen: Any = {name: SECURE[name] for name in given}
    for hosts in ((host, host), ("127.0.0.1", host)):
        settings = Settings(host=hosts[0], http_host=hosts[1], **chosen)
        with pytest.raises(InvalidArgument) as refused:
            check_exposure(settings)
        what, remedy = refused.value.message.splitlines()
        assert what.endswith(f"the server has {lacking}")
        assert what.startswith(f"{refused.value.field} {host} ")
        for option in ("--tls-cert", "--tokens", "headrace tls new", "--allow-insecure"):
            assert option in remedy
        check_exposure(replace(settings, allow_insecure=True))


@pytest.mark.parametrize("control", ["tokens", "jwt_jwks", "tls_client_ca"])
def test_a_server_with_tls_and_access_control_may_be_reached(control: str) -> None:
    chosen: Any = {control: Path("f"), "tls_cert": Path("c"), "tls_key": Path("k")}
    check_exposure(Settings(host="0.0.0.0", **chosen))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_server_for_this_machine_alone_needs_nothing(host: str) -> None:
    check_exposure(Settings(host=host))


def test_a_unix_socket_that_every_user_may_open_needs_a_credential_in_the_call() -> None:
    exposed = Settings(unix_socket=Path("s"), unix_socket_mode=0o666)
    certified: Any = {**SECURE, "tokens": None, "tls_client_ca": Path("a")}
    for settings in (exposed, replace(exposed, **certified)):
        with pytest.raises(InvalidArgument, match="every user") as refused:
            check_exposure(settings)
        assert refused.value.field == "unix_socket_mode"
        check_exposure(replace(settings, unix_socket_mode=0o660))
        check_exposure(replace(settings, tokens=Path("t")))
        check_exposure(replace(settings, allow_insecure=True))


def test_an_open_host_does_not_matter_where_grpc_has_no_port() -> None:
    only = Settings(host="0.0.0.0", http_host="127.0.0.1", unix_socket=Path("s"))
    with pytest.raises(InvalidArgument, match=r"host 0\.0\.0\.0"):
        check_exposure(only)
    check_exposure(replace(only, unix_socket_only=True))
    with pytest.raises(InvalidArgument, match="http_host"):
        check_exposure(replace(only, unix_socket_only=True, http_host="0.0.0.0"))
