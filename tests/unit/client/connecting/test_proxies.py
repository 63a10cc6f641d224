"""Which proxy the environment names for a server."""

from __future__ import annotations

import pytest

from headrace.client.channel.connecting.names import Location
from headrace.client.channel.connecting.proxies import proxy_for, status_of

SERVER = Location("a.example.com", 9000)
PROXY = "http://proxy:3128"


@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy"])
def test_a_variable_names_the_proxy(variable: str) -> None:
    found = proxy_for(SERVER, {variable: PROXY})
    assert found is not None
    assert (found.place, found.variable) == (Location("proxy", 3128), variable)


def test_the_first_variable_that_is_set_counts_even_if_it_is_empty() -> None:
    found = proxy_for(SERVER, {"grpc_proxy": "http://first:1", "https_proxy": PROXY})
    assert found is not None
    assert found.place.host == "first"
    assert proxy_for(SERVER, {"grpc_proxy": "", "https_proxy": PROXY}) is None


def test_a_header_of_http_cannot_name_the_proxy_of_a_cgi_program() -> None:
    assert proxy_for(SERVER, {"HTTP_PROXY": PROXY}) is None


def test_a_proxy_without_a_port_is_at_443_as_in_grpc() -> None:
    found = proxy_for(SERVER, {"https_proxy": "http://proxy"})
    assert found is not None
    assert found.place.port == 443


@pytest.mark.parametrize("value", ["https://proxy:1", "proxy:1", "socks5://proxy", "http://:1"])
def test_what_grpc_takes_for_no_proxy_is_ignored_and_said(
    value: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert proxy_for(SERVER, {"https_proxy": value}) is None
    assert "https_proxy is not http://host:port" in caplog.text


@pytest.mark.parametrize(
    ("excepted", "host", "proxied"),
    [
        ("a.example.com", "a.example.com", False),
        ("example.com", "a.example.com", False),
        (".example.com", "a.example.com", False),
        (".example.com", "example.com", False),
        (" x , EXAMPLE.com ", "a.example.com", False),
        ("example.com", "notexample.com", True),
        ("a.example.com", "example.com", True),
        ("*", "anything", False),
        ("10.0.0.0/8", "10.1.2.3", False),
        ("10.0.0.0/8", "11.1.2.3", True),
        ("fd00::/8", "fd00::1", False),
        ("10.0.0.0/8", "a.example.com", True),
        ("10.0.0.0/99", "10.1.2.3", True),
        ("", "a.example.com", True),
        (",", "a.example.com", True),
    ],
)
@pytest.mark.parametrize("variable", ["no_grpc_proxy", "no_proxy", "NO_PROXY"])
def test_hosts_domains_and_networks_are_excepted(
    variable: str, excepted: str, host: str, proxied: bool
) -> None:
    found = proxy_for(Location(host, 1), {"https_proxy": PROXY, variable: excepted})
    assert (found is not None) is proxied


@pytest.mark.parametrize(
    "place",
    [Location("localhost", 1), Location("127.0.0.1", 1), Location("::1", 1), Location(path="/a")],
)
def test_this_machine_is_reached_without_a_proxy(place: Location) -> None:
    assert proxy_for(place, {"https_proxy": PROXY}) is None


def test_the_request_has_the_credentials_and_nothing_else_shows_them() -> None:
    found = proxy_for(SERVER, {"https_proxy": "http://user:p%40ss@proxy:3128"})
    assert found is not None
    assert found.request(SERVER) == (
        b"CONNECT a.example.com:9000 HTTP/1.1\r\nHost: a.example.com:9000\r\n"
        b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n\r\n"
    )
    assert "p@ss" not in repr(found)


def test_the_status_of_an_answer() -> None:
    assert status_of(b"HTTP/1.1 200 OK\r\n") == 200
    assert status_of(b"HTTP/1.0 407 \r\n") == 407
    assert status_of(b"SSH-2.0-x\r\n") == 0
