"""When traces are on, and which settings are refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from headrace.runtime.errors import FailedPrecondition, InvalidArgument
from headrace.server.settings.settings import Settings
from headrace.server.settings.sources import load_settings
from headrace.server.tracing.start import shown_host, start_tracing

URL = "http://127.0.0.1:4317"
VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def is_on(settings: Settings, environment: Mapping[str, str] | None = None) -> bool:
    tracing = start_tracing(settings, environment or {})
    if tracing is not None:
        tracing.close(60)
    return tracing is not None


def test_traces_are_off_unless_somebody_names_a_collector() -> None:
    assert not is_on(Settings())
    assert is_on(Settings(otlp_endpoint=URL))
    assert is_on(Settings(), {VARIABLE: URL})
    assert is_on(Settings(), {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL})


def test_the_sdk_s_variables_switch_them_off() -> None:
    assert not is_on(Settings(otlp_endpoint=URL), {"OTEL_SDK_DISABLED": "true"})
    assert not is_on(Settings(), {VARIABLE: URL, "OTEL_TRACES_EXPORTER": "none"})


@pytest.mark.parametrize("url", ["localhost:4317", "ftp://host", "http://", "http://[::1", "x"])
def test_an_endpoint_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="is not the URL of a collector") as caught:
        start_tracing(Settings(otlp_endpoint=url), {})
    assert caught.value.field == "otlp_endpoint"


@pytest.mark.parametrize(
    ("settings", "environment", "named"),
    [
        (Settings(otlp_endpoint=URL), {}, "--otlp-endpoint"),
        (Settings(), {VARIABLE: URL}, VARIABLE),
    ],
)
def test_without_the_extra_the_start_refuses_and_says_what_to_install(
    settings: Settings,
    environment: Mapping[str, str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("headrace.server.tracing.otlp", raising=False)
    monkeypatch.delitem(sys.modules, "headrace.server.tracing.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(FailedPrecondition) as caught:
        start_tracing(settings, environment)
    assert named in caught.value.message
    assert "pip install 'headrace[otel]'" in caught.value.message


@pytest.mark.parametrize("ratio", ["1.5", "-0.1", "nan", "many"])
def test_a_ratio_outside_its_range_is_refused(ratio: str) -> None:
    with pytest.raises(InvalidArgument, match="allowed: a finite number from 0 to 1"):
        load_settings({"trace_sample_ratio": ratio}, {})


def test_the_settings_are_read() -> None:
    given = {"trace_sample_ratio": "0.01", "trust_trace_parents": True, "otlp_endpoint": URL}
    settings = load_settings(given, {})
    assert (settings.trace_sample_ratio, settings.trust_trace_parents) == (0.01, True)


def test_a_server_on_all_interfaces_goes_by_its_machine_s_name() -> None:
    assert shown_host("127.0.0.1") == "127.0.0.1"
    assert shown_host("0.0.0.0") == shown_host("::") != "0.0.0.0"
