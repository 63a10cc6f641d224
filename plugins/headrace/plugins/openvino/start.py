"""Starts OpenVINO when something first needs it.

The library takes 115 MB and half a second. A server that has OpenVINO installed but does not use it
should be as small as a server without it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.runtime.errors import NotInstalled, Unavailable

if TYPE_CHECKING:
    from headrace.plugins.openvino.backend.compiler import Compiler

_log = logging.getLogger(__name__)

_PACKAGE: Final = "openvino"
_REMEDY: Final = "install headrace with its extra 'openvino'"


def installed_version(package: str = _PACKAGE) -> str:
    """The library's version, which comes from its package's metadata. Imports nothing.

    Raises:
        NotInstalled: the library is not installed.
        Unavailable: the library is there, but its package's metadata is not.
    """
    if importlib.util.find_spec(package) is None:
        raise NotInstalled(f"OpenVINO is not installed; {_REMEDY}")
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable(f"OpenVINO is installed without its package; {_REMEDY}") from None


def start_openvino() -> Compiler:
    """Imports the library and has it look for devices.

    Raises:
        Unavailable: the library cannot be imported, does not start, or finds no device.
    """
    try:
        from headrace.plugins.openvino.backend.compiler import Compiler
        from headrace.plugins.openvino.backend.core import Runtime
        from headrace.plugins.openvino.claims.unclaimed import version_of_claims
    except Exception as error:
        raise Unavailable(f"OpenVINO cannot be imported ({error}); {_REMEDY}") from error
    try:
        runtime = Runtime()
    except Exception as error:
        raise Unavailable(f"OpenVINO does not start: {error}") from error
    if not runtime.devices:
        raise Unavailable("OpenVINO finds no device on this machine")
    installed = installed_version()
    for device in runtime.devices:
        made_with = version_of_claims(device)
        if made_with is None:
            _log.warning(
                "OPENVINO claims no layers on %s: nobody has run `make claims` there", device
            )
        elif made_with != installed:
            _log.warning(
                "what OPENVINO claims on %s was tried with OpenVINO %s, and %s is installed; run "
                "`make claims` if answers differ",
                device,
                made_with,
                installed,
            )
    return Compiler(runtime)


class FirstUse:
    """Makes the compiler at the first call of `get`. Thread-safe: the first caller holds `_lock`
    while it calls `start`, so that the compiler is made once and other callers wait for it.
    `started` and `failed` are called without the lock.

    Args:
        start: makes the compiler, or raises Unavailable. After that error it is not called again.
        started: called once with the compiler.
        failed: called once with the reason why there is no compiler.
    """

    def __init__(
        self,
        start: Callable[[], Compiler],
        started: Callable[[Compiler], None],
        failed: Callable[[str], None],
    ) -> None:
        self._start = start
        self._started = started
        self._failed = failed
        self._lock = threading.Lock()
        self._made: Compiler | None = None
        self._reason = ""

    def made(self) -> Compiler | None:
        """The compiler, or None if it has not been made yet."""
        return self._made

    def get(self) -> Compiler:
        """
        Raises:
            Unavailable: the compiler could not be made.
        """
        if self._made is None:
            with self._lock:
                first = self._made is None and not self._reason
                if first:
                    self._make()
            if first:
                self._tell()
        if self._made is None:
            raise Unavailable(self._reason)
        return self._made

    def _make(self) -> None:
        try:
            self._made = self._start()
        except Unavailable as error:
            self._reason = error.message

    def _tell(self) -> None:
        if self._made is not None:
            self._started(self._made)
        else:
            self._failed(self._reason)
