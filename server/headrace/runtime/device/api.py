"""What a plugin's creation function declares about itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from headrace.runtime.device.plugin import Plugin

PLUGIN_API_VERSION = 1
"""The version goes up when plugins written for the earlier version would no longer work."""

_C = TypeVar("_C", bound="Callable[..., Plugin]")

Isolated: TypeAlias = bool | Literal["by default", "in part"]


def plugin_api(
    version: int, *, isolated: Isolated = False, late: bool = False
) -> Callable[[_C], _C]:
    """Declares for which PLUGIN_API_VERSION a creation function was written.

    Args:
        isolated: whether the device runs in a process of its own. True: always, because it does not
            work otherwise. "by default": unless the server's configuration says ISOLATION=NONE.
            False: only if the configuration says ISOLATION=PROCESS. "in part": the plugin is in
            the server, and gives its backend a process unless it gets ISOLATION=NONE. The server
            imports the module of the function in each case, so the module should import no backend.
        late: the function and its plugin do not load the backend before it is needed. The
            process of such a device starts at the device's first use. Until then the server makes
            the plugin without any settings, and asks it for its keys and the names of its metrics.
    """

    def declare(create: _C) -> _C:
        create.headrace_plugin_api = version  # type: ignore[attr-defined]
        create.headrace_isolated = isolated  # type: ignore[attr-defined]
        create.headrace_late = late  # type: ignore[attr-defined]
        return create

    return declare
