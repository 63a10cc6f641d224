"""Who is at fault when a request has failed: the device, the request, or it cannot be told yet."""

from __future__ import annotations

import enum

from headrace.runtime.errors import (
    EndedWorker,
    HeadraceError,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)


class Blame(enum.Enum):
    """DEVICE: it is down, and says so. REQUEST: any device would answer so. VALUES: the device does
    not take the request's values; another one may. UNCLEAR: a bug, no memory, or the end of the
    device's process; it was the device if another one can run the request, else the request."""

    DEVICE = "device"
    REQUEST = "request"
    VALUES = "values"
    UNCLEAR = "unclear"


def blame(error: BaseException) -> Blame:
    """Told by the error's class alone, never by its text. What is no error of the runtime's is a
    bug of the device's plugin or of its backend."""
    if isinstance(error, Unavailable):
        return Blame.DEVICE
    if isinstance(error, InvalidArgument):  # names, types and shapes were right before it was sent
        return Blame.VALUES
    unclear = Internal | ResourceExhausted | EndedWorker
    if isinstance(error, HeadraceError) and not isinstance(error, unclear):
        return Blame.REQUEST
    return Blame.UNCLEAR
