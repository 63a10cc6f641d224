"""A server that cannot start names the setting at fault, and ends with 1; one that can heeds it."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.harness import BASIC, Server, refused_start


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (lambda folder: ["--state-dir", f"{folder}/file/state"], "state_dir: .*file.*directory.*"),
        (
            lambda folder: ["--model-repository", f"{folder}/none"],
            "model_repository: .*none.*No such.*",
        ),
        (lambda folder: ["--mac-key-file", f"{folder}"], "mac_key_file: .*directory.*"),
        (
            lambda folder: ["--host", "192.0.2.1", "--allow-insecure"],
            "port: cannot listen on 192.0.2.1:0: Cannot .*",
        ),
        (
            lambda folder: ["--host", "no.host.invalid", "--allow-insecure"],
            "host: 'no.host.invalid' is not an address.*",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_named(
    options: Callable[[Path], list[str]], says: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    code, said = refused_start(*BASIC, *options(tmp_path))
    assert code == 1
    error = json.loads(said.splitlines()[-1])["error"]
    assert re.fullmatch(says, f"{error['field']}: {error['message']}"), said
    assert error["code"] == "INVALID_ARGUMENT"
    assert "bug" not in said


def test_a_state_directory_is_one_server_s(tmp_path: Path) -> None:
    with Server(*BASIC, "--state-dir", str(tmp_path)) as first:
        code, said = refused_start(*BASIC, "--state-dir", str(tmp_path))
        error = json.loads(said.splitlines()[-1])["error"]
        assert (code, error["field"]) == (1, "state_dir")
        assert error["message"] == (
            f"{tmp_path} is in use by another server (process {first.process.pid}); stop it, or "
            "give each server a state directory of its own"
        )
        first.kill()
    with Server(*BASIC, "--state-dir", str(tmp_path)) as second:  # a killed one holds nothing
        assert second.stop() == 0


@pytest.mark.parametrize(("setting", "address"), [("port", "address"), ("http_port", "http")])
def test_a_port_that_is_taken_is_named_before_any_device_starts(
    server: Server, setting: str, address: str
) -> None:
    taken = getattr(server, address)
    flag = "--" + setting.replace("_", "-")
    code, said = refused_start("--log-level", "debug", flag, taken.rpartition(":")[2])
    assert code == 1
    (line,) = said.splitlines()
    error = json.loads(line)["error"]
    assert error["field"] == setting
    assert error["message"] == f"cannot listen on {taken}: Address already in use"


def test_a_mistake_in_a_device_s_table_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    settings = tmp_path / "headrace.toml"
    settings.write_text("[plugins.CPU.config]\nNUM_STREAM = 2\n")
    code, said = refused_start(*BASIC, "--config", str(settings))
    assert code == 1
    error = json.loads(said.splitlines()[-1])["error"]
    assert error["field"] == "plugins.CPU.config['NUM_STREAM']"
    assert "did you mean 'NUM_STREAMS'" in error["message"]


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_when_the_server_is_ready(abstract: bool, tmp_path: Path) -> None:
    name = f"@headrace-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0"))
        systemd.settimeout(60)
        with Server(*BASIC, environment={"NOTIFY_SOCKET": name}) as server:
            assert systemd.recv(100) == b"READY=1"
            assert server.stop() == 0


def test_a_server_starts_although_systemd_does_not_listen(tmp_path: Path) -> None:
    with Server(*BASIC, environment={"NOTIFY_SOCKET": str(tmp_path / "nobody")}) as server:
        assert server.stop() == 0
        assert "cannot tell systemd READY=1: No such file" in server.log()
