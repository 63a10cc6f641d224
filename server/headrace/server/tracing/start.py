"""Switches traces on, if the settings or the SDK's own variables want them."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from urllib.parse import urlsplit

from headrace.runtime.errors import FailedPrecondition, InvalidArgument
from headrace.server.settings.settings import Settings
from headrace.server.tracing.tracing import Tracing

_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_ANY_HOST = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def start_tracing(
    settings: Settings, environment: Mapping[str, str] = os.environ
) -> Tracing | None:
    """The tracing of a server, or None if nobody named a collector.

    Raises:
        FailedPrecondition: the extra `otel` is not installed.
        InvalidArgument: the endpoint is not a URL, or a variable of the SDK has a bad value.
    """
    wanted_by = _wanted_by(settings, environment)
    if wanted_by is None:
        return None
    endpoint = settings.otlp_endpoint
    if endpoint and not _is_url(endpoint):
        raise InvalidArgument(
            f"{endpoint[:200]!r} is not the URL of a collector; give one as http://localhost:4317",
            field="otlp_endpoint",
        )
    try:
        from headrace.server.tracing import otlp
    except ModuleNotFoundError as error:
        raise FailedPrecondition(
            f"{wanted_by} names a collector of traces, and OpenTelemetry is not installed: "
            "pip install 'headrace[otel]', or set OTEL_SDK_DISABLED=true",
            field="otlp_endpoint",
        ) from error
    facts = {
        "service.name": "headrace",
        "service.version": version("headrace"),
        "service.instance.id": str(uuid.uuid4()),
        "host.name": socket.gethostname(),
    }
    sink = otlp.OtlpSink(otlp.exporter(endpoint or None), facts)
    tracing = Tracing(
        sink, settings.trace_sample_ratio, trusts_parents=settings.trust_trace_parents
    )
    tracing.address = shown_host(settings.host), settings.port
    return tracing


def shown_host(host: str) -> str:
    """The host that the server listens on. This machine's name if it listens on all interfaces."""
    return socket.gethostname() if host in _ANY_HOST else host


def _wanted_by(settings: Settings, environment: Mapping[str, str]) -> str | None:
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if settings.otlp_endpoint:
        return "--otlp-endpoint"
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return None
    return next((name for name in _VARIABLES if environment.get(name)), None)


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
