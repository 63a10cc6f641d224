"""The bounds of what a request for inference says of itself."""

from __future__ import annotations

from typing import Final

MAX_ID_LENGTH: Final = 128
"""The most characters of a request's id, and of a session's."""
MAX_PRIORITY: Final = 10
"""The highest priority. Its negative is the lowest one."""
MAX_TIMEOUT_SECONDS: Final = 7 * 24 * 3600.0
