"""The servers that a target names, and which client it needs."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias

from headrace.client.channel.connecting.names import DEFAULT_TARGET, parse
from headrace.client.errors import invalid

if TYPE_CHECKING:
    from headrace.client.balancing.options import Balancing


Targets: TypeAlias = "str | Sequence[str]"

MAX_SERVERS: Final = 1024
_SCHEME = re.compile(r"[a-z0-9-]+:(?!\d+(,|$))")


def is_several(target: object, balance: Balancing | bool) -> bool:
    """Whether a client of `target` balances."""
    if isinstance(target, str):
        return bool(balance) or ("," in target and not _SCHEME.match(target))
    return isinstance(target, Iterable)


def listed(target: Targets) -> list[str]:
    """The addresses that `target` lists, each once, with their ports.

    Raises:
        InvalidArgument: it lists none, too many, or one that is not an address.
    """
    texts = target.split(",") if isinstance(target, str) else list(target)
    found = list(dict.fromkeys(parse(_stripped(text)).text for text in texts))
    if not 0 < len(found) <= MAX_SERVERS:
        raise invalid("target", f"{len(found)} servers are listed; list 1 to {MAX_SERVERS}")
    return found


def _stripped(text: Any) -> Any:
    return text.strip() if isinstance(text, str) else text


def name_of(target: Targets) -> tuple[str, int] | None:
    """Host and port, if `target` is a name whose addresses DNS tells, as ``dns:///name:9000``.

    Raises:
        InvalidArgument: it names a DNS server. This machine's own settings say which one is asked.
    """
    if not isinstance(target, str) or not target.startswith("dns:"):
        return None
    name = parse(target)
    if len(name.places) > 1:
        return None
    (place,) = name.places
    if name.resolver:
        raise invalid(
            "target",
            f"{target!r} names a DNS server, but a client that balances asks the DNS servers of "
            f"this machine; pass dns:///{place}",
        )
    return place.host, place.port


def resolved(infos: Iterable[Any]) -> list[str]:
    """The addresses in what `socket.getaddrinfo` returned, each once and in order."""
    found: dict[str, None] = {}
    for family, _, _, _, place in infos:
        host, port = place[:2]
        found[f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"] = None
    return sorted(found)[:MAX_SERVERS]


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name. Waits for DNS.

    Raises:
        OSError: DNS does not know the name, or does not answer.
    """
    return resolved(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


class Choosing:
    """The base of a client that is another class for several servers.

    Args:
        balanced: the module with this other class, `BalancedClient`. It is imported when it is
            needed, so that a client of one server does not pay for it.
    """

    _balanced: ClassVar[str] = ""
    calls: Any

    def __init_subclass__(cls, balanced: str = "") -> None:
        cls._balanced = balanced

    def __new__(
        cls, target: Any = DEFAULT_TARGET, *_: Any, balance: Balancing | bool = False, **__: Any
    ) -> Self:
        if cls._balanced and is_several(target, balance):
            cls = import_module(cls._balanced).BalancedClient
        return super().__new__(cls)

    def check_open(self) -> None:
        """
        Raises:
            FailedPrecondition: the client is closed.
        """
        self.calls.check_open()
