"""`Client(...)` makes the client for several servers if its target names several."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self

from headrace.client.balancing.addresses import is_several
from headrace.client.channel.connecting.names import DEFAULT_TARGET

if TYPE_CHECKING:
    from headrace.client.balancing.options import Balancing


class Choosing:
    """The base of a client that is another class for several servers.

    Args:
        balanced: the module with this other class, `BalancedClient`. It is imported when it is
            needed, so that a client of one server does not pay for it.
    """

    _balanced: ClassVar[str] = ""

    def __init_subclass__(cls, balanced: str = "") -> None:
        cls._balanced = balanced

    def __new__(
        cls, target: Any = DEFAULT_TARGET, *_: Any, balance: Balancing | bool = False, **__: Any
    ) -> Self:
        if cls._balanced and is_several(target, balance):
            cls = import_module(cls._balanced).BalancedClient
        return super().__new__(cls)
