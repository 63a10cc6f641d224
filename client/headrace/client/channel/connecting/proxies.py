"""The proxy that the environment names, and the words that it is asked with.

The variables are those of gRPC's ``doc/core/default_http_proxy_mapper.md``. Their names in capital
letters count, too, as other programs have them.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from headrace.client.channel.connecting.names import Location

_log = logging.getLogger(__name__)

# Without HTTP_PROXY: behind a web server that runs programs by CGI, a request's header sets it.
_PROXY: Final = ("grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy")
_NO_PROXY: Final = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
_DEFAULT_PORT: Final = 443
MOST_HEAD_BYTES: Final = 16384
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy.

    Attributes:
        variable: the environment's variable that names it.
        credentials: user and password; empty for none. repr() does not show them.
    """

    place: Location
    variable: str
    credentials: str = field(default="", repr=False)

    def request(self, place: Location) -> bytes:
        """Asks for a connection to a server (RFC 9110, 9.3.6)."""
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
        if self.credentials:
            encoded = base64.b64encode(self.credentials.encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {encoded}")
        return "\r\n".join([*lines, "", ""]).encode()


def status_of(head: bytes) -> int:
    """The status in an answer to `Proxy.request`; 0 if it is not HTTP's."""
    found = _STATUS.match(head)
    return int(found[1]) if found else 0


def proxy_for(place: Location, environ: Mapping[str, str]) -> Proxy | None:
    """The proxy that leads to a server. This machine is reached without one."""
    if place.is_local:
        return None
    variable = next((name for name in _PROXY if name in environ), "")
    if not environ.get(variable) or _is_excepted(place.host, environ):
        return None
    url = urlsplit(environ[variable])
    try:
        host, port = url.hostname, url.port or _DEFAULT_PORT
    except ValueError:
        host = None
    if url.scheme != "http" or not host:
        _log.warning("%s is not http://host:port, and is ignored", variable)
        return None
    credentials = unquote(url.netloc.rpartition("@")[0])
    return Proxy(Location(host, port), variable, credentials)


def _is_excepted(host: str, environ: Mapping[str, str]) -> bool:
    """Whether the environment says that this host is reached without a proxy. A domain stands for
    all hosts in it."""
    excepted = next((environ[name] for name in _NO_PROXY if name in environ), "")
    address = None
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
    for entry in filter(None, map(str.strip, excepted.split(","))):
        domain = entry.removeprefix(".").casefold()
        if entry == "*" or f".{host.casefold()}".endswith(f".{domain}"):
            return True
        if address is not None and "/" in entry:
            with suppress(ValueError):
                if address in ipaddress.ip_network(entry, strict=False):
                    return True
    return False
