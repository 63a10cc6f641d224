"""The logging and trace extensions. Log settings can change; traces are set at the start."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.errors import InvalidArgument, NotFound, Unimplemented
from headrace.server.logs import ROOT

_LEVELS: Final = {
    "log_error": logging.ERROR,
    "log_warning": logging.WARNING,
    "log_info": logging.INFO,
}
_VERBOSE: Final = "log_verbose_level"
_FIXED: Final = {"log_file": "", "log_format": "default"}
_NO_TRACES: Final = {
    "trace_file": ("",),
    "trace_level": ("OFF",),
    "trace_rate": ("0",),
    "trace_count": ("-1",),
    "log_frequency": ("0",),
    "trace_mode": ("triton",),
}


def log_settings(settings: Mapping[str, bool | int | str]) -> oip.LogSettingsResponse:
    """Changes these log settings, if any, and returns all log settings.

    The settings are levels, in the order error, warning, info, verbose. Switching a setting on also
    switches on those before it. Switching a setting off also switches off those after it.

    Raises:
        NotFound: there is no such setting.
        InvalidArgument: a value has the wrong type.
        Unimplemented: the setting cannot change while the server runs.
    """
    logger = logging.getLogger(ROOT)
    level = logger.getEffectiveLevel()
    for name, value in settings.items():
        level = _changed(level, name, value)
    logger.setLevel(level)
    reply = oip.LogSettingsResponse()
    for name, least in _LEVELS.items():
        reply.settings[name].bool_param = level <= least
    reply.settings[_VERBOSE].uint32_param = int(level <= logging.DEBUG)
    for name, text in _FIXED.items():
        reply.settings[name].string_param = text
    return reply


def trace_settings(settings: Mapping[str, Sequence[str]]) -> oip.TraceSettingResponse:
    """Returns the trace settings, which say that Triton's own traces are off.

    Raises:
        NotFound: there is no such setting.
        Unimplemented: the request changes a setting.
    """
    for name, values in settings.items():
        if name not in _NO_TRACES:
            raise NotFound.unknown("trace setting", name[:100], _NO_TRACES, field="settings")
        if values and tuple(values) != _NO_TRACES[name]:  # no values ask for the default
            raise Unimplemented(
                f"trace setting {name!r} cannot change while the server runs; start it with "
                "--otlp-endpoint for traces, or load the network with PERF_COUNT=YES and ask "
                "GetNetwork for the time of each layer"
            )
    reply = oip.TraceSettingResponse()
    for name, values in _NO_TRACES.items():
        reply.settings[name].value.extend(values)
    return reply


def _changed(level: int, name: str, value: bool | int | str) -> int:
    if name in _LEVELS:
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name} takes true or false", field=f"settings[{name!r}]")
        own = _LEVELS[name]
        return min(level, own) if value else max(level, own + 10)
    if name == _VERBOSE:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgument(f"{name} takes a number", field=f"settings[{name!r}]")
        return min(level, logging.DEBUG) if value else max(level, logging.INFO)
    if name not in _FIXED:
        known = (*_LEVELS, _VERBOSE, *_FIXED)
        raise NotFound.unknown("log setting", name[:100], known, field="settings")
    if value != _FIXED[name]:
        raise Unimplemented(
            f"log setting {name!r} cannot change while the server runs; it logs to stderr, in the "
            "form that --log-format says"
        )
    return level
