"""AUTO: the package that its entry point names. `multi` has the code of both devices."""

from __future__ import annotations

from headrace.plugins.multi import create_auto as create_plugin

__all__ = ["create_plugin"]
