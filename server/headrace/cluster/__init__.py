"""A cluster of headrace servers on Ray Serve. It needs the extra ``ray``.

``serve run headrace.cluster:app store=/srv/headrace`` starts it on the Ray of this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.cluster.application import app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    # Only the application needs Ray itself.
    if name == "app":
        from headrace.cluster.application import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
