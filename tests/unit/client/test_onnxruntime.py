"""The server of a session of ONNX Runtime's kind, as the environment names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.client import errors
from headrace.client.onnxruntime.session import _connected
from tests.support.certificates import Authority

VARIABLES = ("SERVER", "TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN", "TOKEN_FILE", "ALLOW_INSECURE")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)


def address(target: str | None) -> str:
    with _connected(target) as client:
        return client.target


def test_the_target_wins_over_the_environment_and_that_over_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert address(None) == "localhost:9000"
    monkeypatch.setenv("HEADRACE_SERVER", "localhost:1")
    assert address(None) == "localhost:1"
    assert address("localhost:2") == "localhost:2"


def test_the_token_is_the_environments_or_in_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "plain")
    with _connected(None) as client:
        assert client.endpoint.security.metadata() == (("authorization", "Bearer plain"),)
    file = tmp_path / "token"
    file.write_text("filed\n")
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(file))
    with pytest.raises(errors.InvalidArgument, match="two tokens"):
        _connected(None)
    monkeypatch.delenv("HEADRACE_TOKEN")
    with _connected(None) as client:
        assert client.endpoint.security.metadata() == (("authorization", "Bearer filed"),)
    file.unlink()
    with pytest.raises(errors.InvalidArgument, match=r"cannot read .*token"):
        _connected(None)


def test_a_token_travels_in_plain_text_only_if_the_environment_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "secret")
    with pytest.raises(errors.InvalidArgument, match="plain text"):
        _connected("example.com")
    monkeypatch.setenv("HEADRACE_ALLOW_INSECURE", "true")
    assert address("example.com") == "example.com:9000"


def test_tls_is_the_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_TLS_CA", str(Authority().write(tmp_path)))
    with _connected("example.com") as client:
        tls = client.endpoint.tls
    assert tls is not None
    assert tls.name == "example.com"
