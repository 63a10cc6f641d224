"""What `headrace doctor` says of settings, of the files that they name, and of a running server."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headrace.client.cli.app import make_app
from headrace.server.doctor import certificates, devices, limits, places, running
from headrace.server.doctor.finding import Finding, State, ok
from headrace.server.settings.option import GIB
from headrace.server.settings.settings import Settings
from headrace.testing import networks
from tests.support.certificates import Authority
from tests.support.tokens import Signer, entry, key_set
from tests.unit.server.doctor.test_machine import only


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def tls(
    folder: Path,
    authority: Authority,
    *names: str,
    since: timedelta = -timedelta(days=1),
    until: timedelta = timedelta(days=90),
) -> Settings:
    cert, key = authority.server(names, since=since, until=until).write(folder, "server")
    key.chmod(0o600)
    return Settings(tls_cert=cert, tls_key=key)


def test_a_good_certificate(authority: Authority, tmp_path: Path) -> None:
    state, text = only(certificates.check_tls_files(tls(tmp_path, authority, "a.test"), "a.test"))
    assert (state, "is for a.test" in text) == (State.OK, True)
    assert list(certificates.check_tls_files(Settings())) == []


def test_a_certificate_for_another_name(authority: Authority, tmp_path: Path) -> None:
    settings = tls(tmp_path, authority, "a.test", "*.b.test", "10.0.0.1")
    for name in ("A.test", "x.b.test", "10.0.0.1"):
        assert only(certificates.check_tls_files(settings, name))[0] is State.OK
    for name in ("c.test", "b.test", "x.y.b.test", "10.0.0.2"):
        state, text = only(certificates.check_tls_files(settings, name))
        assert (state, f"and not for {name}" in text) == (State.PROBLEM, True)


@pytest.mark.parametrize(
    ("since", "until", "state", "named"),
    [
        (timedelta(days=-9), timedelta(days=-1), "problem", "expired"),
        (timedelta(days=1), timedelta(days=9), "problem", "valid only from"),
        (timedelta(days=-9), timedelta(days=3), "warning", "expires in 2 days"),
    ],
)
def test_a_certificate_out_of_its_time(
    since: timedelta, until: timedelta, state: str, named: str, authority: Authority, tmp_path: Path
) -> None:
    settings = tls(tmp_path, authority, "a.test", since=since, until=until)
    found, text = only(certificates.check_tls_files(settings, "a.test"))
    assert (found, named in text) == (state, True), text


def test_keys_and_chains_that_do_not_belong_together(authority: Authority, tmp_path: Path) -> None:
    settings = tls(tmp_path, authority, "a.test")
    assert settings.tls_cert is not None
    assert settings.tls_key is not None
    settings.tls_key.chmod(0o644)
    first = next(iter(certificates.check_tls_files(settings)))
    assert (first.state, "chmod 600" in first.remedy) == (State.WARNING, True)
    settings.tls_key.chmod(0o600)

    good = settings.tls_cert.read_bytes()
    settings.tls_cert.write_bytes(good + authority.certificate)
    assert only(certificates.check_tls_files(settings))[0] is State.OK
    settings.tls_cert.write_bytes(good + Authority("Another").certificate)
    state, text = only(certificates.check_tls_files(settings))
    assert (state, "is not signed by the next one" in text) == (State.PROBLEM, True)

    settings.tls_cert.write_bytes(authority.server(("a.test",)).certificate)
    state, text = only(certificates.check_tls_files(settings))
    assert (state, "is not the key of" in text) == (State.PROBLEM, True)
    settings.tls_key.unlink()
    assert only(certificates.check_tls_files(settings))[0] is State.PROBLEM


@pytest.mark.parametrize(
    ("text", "mode", "states", "named"),
    [
        (entry("a", "1", "read"), 0o600, ["ok"], "has 1 entries"),
        (entry("a", "1", "read"), 0o644, ["warning", "ok"], "every user can read"),
        (entry("a", "1", "read"), 0o662, ["problem", "ok"], "make themselves tokens"),
        ("", 0o600, ["problem"], "nobody can call"),
        (entry("a", "1", "reed"), 0o600, ["problem"], "did you mean 'read'"),
        (None, 0o600, ["problem"], "cannot be read"),
    ],
)
def test_tokens(text: str | None, mode: int, states: list[str], named: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    found = list(places.check_tokens(Settings(tokens=path)))
    assert [each.state for each in found] == states
    assert any(named in each.message for each in found), found


def test_keys_of_jwts(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(key_set([Signer()]))
    settings = Settings(jwt_jwks=path, jwt_audience="a")
    assert only(places.check_tokens(settings))[0] is State.OK
    path.write_text("{}")
    assert only(places.check_tokens(settings))[0] is State.PROBLEM


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What each file system has free."""
    space = SimpleNamespace(free=50 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: space)
    return space


def folders(settings: Settings) -> list[Finding]:
    return list(places.check_folders(settings))


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: SimpleNamespace) -> None:
    state = Settings(state_dir=tmp_path / "new" / "state")
    assert only(folders(state))[0] is State.OK
    assert not (tmp_path / "new").exists()  # nothing is made
    free.free = 1000
    assert only(folders(state))[0] is State.WARNING
    cache = Settings(cache_dir=tmp_path)
    free.free = GIB
    found, text = only(folders(cache))
    assert (found, "--max-cache-bytes" in text) == (State.WARNING, True)
    (tmp_path / "file").touch()
    assert only(folders(Settings(cache_dir=tmp_path / "file")))[0] is State.PROBLEM
    assert only(folders(Settings(audit_log=tmp_path / "audit")))[0] is State.OK
    assert only(folders(Settings(audit_log=tmp_path)))[0] is State.PROBLEM
    monkeypatch.setattr(os, "access", lambda *_: False)
    for settings in (state, cache, Settings(audit_log=tmp_path / "audit")):
        assert only(folders(settings))[0] is State.PROBLEM


@pytest.mark.usefixtures("free")
def test_a_state_directory_of_another_server(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("4711")
    settings = Settings(state_dir=tmp_path)
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _, found = folders(settings)
        assert (found.state, "process 4711" in found.message) == (State.WARNING, True)
    assert [each.state for each in folders(settings)] == [State.OK]


def test_the_model_repository(tmp_path: Path) -> None:
    def check(root: Path) -> tuple[State, str]:
        return only(places.check_repository(Settings(model_repository=root)))

    assert list(places.check_repository(Settings())) == []
    assert check(tmp_path / "none")[0] is State.PROBLEM
    assert check(tmp_path)[0] is State.WARNING
    (tmp_path / "m" / "1").mkdir(parents=True)
    model = tmp_path / "m" / "1" / "model.onnx"
    model.write_bytes(b"no model")
    state, text = check(tmp_path)
    assert (state, "version 1: not a serialised" in text) == (State.WARNING, True)
    model.write_bytes(networks.add().model.SerializeToString())
    assert check(tmp_path) == (State.OK, f"{tmp_path} has 1 networks; ")
    (tmp_path / "m" / "network.toml").write_text("devise = 'CPU'")
    state, text = check(tmp_path)
    assert (state, "device" in text) == (State.WARNING, True)
    (tmp_path / "m" / "network.toml").unlink()
    (tmp_path / "m" / "1" / "model.onnx").rename(tmp_path / "m" / "1" / "net.onnx")
    state, text = check(tmp_path)
    assert (state, "found net.onnx" in text) == (State.WARNING, True)


def test_the_signing_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    settings = Settings(mac_key_file=path)
    assert list(places.check_key(settings)) == []
    path.write_text("short")
    assert only(places.check_key(settings))[0] is State.PROBLEM
    path.write_text("k" * 64)
    path.chmod(0o604)
    assert only(places.check_key(settings))[0] is State.WARNING
    path.chmod(0o600)
    assert only(places.check_key(settings))[0] is State.OK


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_ports(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def states(settings: Settings) -> list[str]:
        return [each.state.value for each in running.check_ports(settings)]

    assert states(Settings(port=0, http_port=0)) == ["ok", "ok"]
    monkeypatch.setattr(running, "_SECONDS", 0.1)
    assert states(Settings(port=taken, http_port=0)) == ["problem", "ok"]
    exposed = Settings(host="0.0.0.0", http_host="0.0.0.0", port=0, http_port=0)
    first = next(iter(running.check_ports(exposed)))
    assert (first.state, "no TLS" in first.message) == (State.PROBLEM, True)
    assert "--tls-cert" in first.remedy


def test_a_server_that_does_not_answer_or_is_not_ready(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_SECONDS", 0.1)
    state, text = only(running.check_server(Settings(http_port=taken), "127.0.0.1"))
    assert (state, "does not answer" in text) == (State.PROBLEM, True)

    def states(status: int, body: str) -> list[str]:
        answer = running.Readiness(status, body, 0.0)
        monkeypatch.setattr(running, "ask", lambda *_, **__: answer)
        return [each.state.value for each in running.check_server(Settings(), "127.0.0.1")]

    assert states(200, "ready\n") == ["ok", "ok"]
    assert states(200, "ready\nnetwork m failed to load\n") == ["ok", "warning", "ok"]
    assert states(503, "starting\n") == ["problem", "ok"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(make_app(["doctor"]), ["doctor", *arguments])


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No devices start, because that takes seconds."""
    monkeypatch.setattr(devices, "check_devices", lambda _: [ok("devices", "none")])


@pytest.mark.usefixtures("quiet")
def test_the_command_reads_the_settings_as_serve_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text(f"tokens = '{tmp_path}/none.toml'\nport = 0\nhttp_port = 0\n")
    monkeypatch.setenv("HEADRACE_CONFIG", str(config))
    ended = run()
    assert ended.exit_code == 1
    lines = ended.stdout.splitlines()
    (line,) = (each for each in lines if each.startswith("problem"))
    assert "none.toml cannot be read" in line
    assert lines[-1].startswith("1 problem, ")
    monkeypatch.delenv("HEADRACE_CONFIG")
    found = json.loads(run("--json", "--tokens", str(tmp_path / "none.toml")).stdout)
    assert found["problems"] >= 1
    (check,) = (each for each in found["checks"] if each["subject"] == "tokens")
    assert check["state"] == "problem"
    assert check["remedy"]


@pytest.mark.usefixtures("quiet")
def test_without_a_problem_the_status_is_0_and_wrong_settings_are_one() -> None:
    assert run("--port", "0", "--http-port", "0").exit_code == 0
    ended = run("--port", "many")
    assert ended.exit_code == 1
    assert "problem  settings" in ended.stdout


@pytest.mark.usefixtures("quiet")
def test_a_bug_in_one_check_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> Iterable[Finding]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(limits, "check_memory", broken)
    ended = run("--port", "0", "--http-port", "0")
    assert ended.exit_code == 1
    assert "could not be checked: RuntimeError: a bug" in ended.stdout
    assert "processors can be used" in ended.stdout


def test_the_time_is_an_argument(authority: Authority, tmp_path: Path) -> None:
    settings = tls(tmp_path, authority, "a.test")
    late = datetime.now(UTC) + timedelta(days=36_500)
    assert any(
        each.state is State.PROBLEM for each in certificates.check_tls_files(settings, "", late)
    )


def test_the_unix_socket(short_folder: Path) -> None:
    path = short_folder / "h.sock"
    settings = Settings(port=0, http_port=0, unix_socket=path, unix_socket_only=True)

    def found(**changed: Any) -> tuple[State, str]:
        first, *rest = running.check_ports(replace(settings, **changed))
        assert [each.state for each in rest] == [State.OK], "HTTP's port, and none for gRPC"
        return first.state, f"{first.message} {first.remedy}"

    assert found() == (State.OK, f"{path} is free ")
    state, text = found(unix_socket=short_folder / "absent" / "h.sock")
    assert (state, "make the folder" in text) == (State.PROBLEM, True)
    state, text = found(unix_socket_owner="no-such-user")
    assert (state, "--unix-socket-owner" in text) == (State.PROBLEM, True)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        assert found()[0] is State.OK, "a dead server's socket is replaced"
        other.listen()
        state, text = found()
        assert (state, "another server" in text) == (State.PROBLEM, True)
