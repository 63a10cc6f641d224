"""What gRPC's names stand for."""

from __future__ import annotations

import pytest

from headrace.client import errors
from headrace.client.channel.connecting import Dialler, Location, parse

LOOPBACK = Location("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("target", "places"),
    [
        ("host", [Location("host", 9000)]),
        ("host:1", [Location("host", 1)]),
        ("10.0.0.1:1", [Location("10.0.0.1", 1)]),
        ("::1", [Location("::1", 9000)]),
        ("[::1]:1", [Location("::1", 1)]),
        ("dns:host", [Location("host", 9000)]),
        ("dns:host:1", [Location("host", 1)]),
        ("dns:///host:1", [Location("host", 1)]),
        ("dns:///[fe80::1]:1", [Location("fe80::1", 1)]),
        ("dns:a:1,b", [Location("a", 1), Location("b", 9000)]),
        ("ipv4:127.0.0.1:1", [LOOPBACK]),
        ("ipv4:127.0.0.1:1,10.0.0.1", [LOOPBACK, Location("10.0.0.1", 9000)]),
        ("ipv6:[::1]:1,[::2]", [Location("::1", 1), Location("::2", 9000)]),
        ("ipv6:::1", [Location("::1", 9000)]),
        ("ipv6:%5B::1%5D:1", [Location("::1", 1)]),
        ("unix:relative.sock", [Location(path="relative.sock")]),
        ("unix:/run/a.sock", [Location(path="/run/a.sock")]),
        ("unix:///run/a.sock", [Location(path="/run/a.sock")]),
        ("unix:/run/a%20b", [Location(path="/run/a b")]),
        ("unix-abstract:name", [Location(path="\0name")]),
    ],
)
def test_a_name_stands_for_places(target: str, places: list[Location]) -> None:
    assert list(parse(target).places) == places


@pytest.mark.parametrize(
    ("target", "authority", "host"),
    [
        ("host", "host:9000", "host"),
        ("dns:///host:1", "host:1", "host"),
        ("[::1]:1", "[::1]:1", "::1"),
        ("unix:/run/a.sock", "localhost", "localhost"),
    ],
)
def test_requests_and_certificates_name_the_server(target: str, authority: str, host: str) -> None:
    assert (parse(target).authority, parse(target).host) == (authority, host)


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("localhost", True),
        ("ipv4:127.0.0.1:1,127.9.9.9:1", True),
        ("[::1]", True),
        ("unix:/run/a.sock", True),
        ("unix-abstract:a", True),
        ("localhost.example", False),
        ("dns:localhost,example.com:1", False),
        ("xds:///localhost", False),
    ],
)
def test_a_name_is_local_if_all_its_places_are(target: str, local: bool) -> None:
    assert parse(target).is_local is local


@pytest.mark.parametrize("target", ["xds:///service", "vsock:1:2", "dns://10.0.0.53/host:1"])
def test_a_name_that_only_grpc_can_look_up_needs_a_channel_of_grpc(target: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="pass a channel of gRPC, as channel="):
        Dialler(parse(target))


def test_places_are_shown_as_names_that_lead_to_them() -> None:
    for target in ("host:1", "[::1]:1", "unix:/a", "unix-abstract:a"):
        (place,) = parse(target).places
        assert str(place) == target
        assert parse(str(place)).places == (place,)
