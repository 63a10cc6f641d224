"""The device's own graph transformations."""

from __future__ import annotations

from headrace.runtime.transform.functions import inline_functions

TRANSFORMATIONS = (inline_functions,)
