"""The systemd unit: valid, closed, and in agreement with the server's settings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.server.addresses import check_exposure, is_loopback
from headrace.server.settings.settings import Settings, options
from headrace.server.settings.sources import load_settings
from tests.deploy.rendering import ROOT

SYSTEMD = ROOT / "deploy" / "systemd"
UNIT = (SYSTEMD / "headrace.service").read_text("utf-8")
DROP_INS = sorted(SYSTEMD.glob("*.conf"))
# What systemd puts for its specifiers.
FOLDERS = {
    "%S": "/var/lib",
    "%C": "/var/cache",
    "%t": "/run",
    "%d": "/run/credentials/headrace.service",
}
# Tenths of a point. 10 is a service without a sandbox; what is left is mostly the network.
EXPOSURE = 15


def analyze(*arguments: str | Path) -> str:
    """What systemd-analyze says; it fails the test if it complains."""
    program = shutil.which("systemd-analyze")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("systemd-analyze is missing: apt-get install systemd")
        pytest.skip("systemd-analyze is not installed; Debian's package systemd has it")
    result = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert not result.stderr, result.stderr
    return result.stdout


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with the program that is installed here."""
    path = tmp_path / "headrace.service"
    here = Path(sys.executable).with_name("headrace")
    path.write_text(UNIT.replace("/opt/headrace/bin/headrace", str(here)), "utf-8")
    return path


def values(name: str, text: str = UNIT) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def settings(text: str) -> Settings:
    """What the server makes of the variables of a unit."""
    variables = dict(each.partition("=")[::2] for each in values("Environment", text))
    ours = {name: value for name, value in variables.items() if name.startswith("HEADRACE_")}
    assert set(ours) <= {each.variable for each in options()}
    for specifier, folder in FOLDERS.items():
        ours = {name: value.replace(specifier, folder) for name, value in ours.items()}
    return load_settings({}, ours)


def test_systemd_accepts_the_unit(unit: Path) -> None:
    analyze("verify", "--man=no", unit)


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda each: each.stem)
def test_systemd_accepts_the_unit_with_a_drop_in(unit: Path, drop_in: Path) -> None:
    folder = unit.with_name(f"{unit.name}.d")
    folder.mkdir()
    shutil.copy(drop_in, folder)
    analyze("verify", "--man=no", unit)


def test_the_sandbox_leaves_little_open(unit: Path) -> None:
    analyze("security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE}", unit)


def test_the_server_of_the_unit_keeps_strangers_out() -> None:
    found = settings(UNIT)
    assert not is_loopback(found.host)
    assert not found.allow_insecure
    check_exposure(found)


def test_systemd_waits_longer_than_the_server_drains() -> None:
    (stop,) = values("TimeoutStopSec")
    assert float(stop) >= settings(UNIT).grace_seconds + 5
    assert values("KillMode") == ["mixed"]


def test_the_server_writes_to_folders_that_systemd_makes() -> None:
    found = settings(UNIT)
    assert found.state_dir == Path("/var/lib") / values("StateDirectory")[0]
    assert found.cache_dir == Path("/var/cache") / values("CacheDirectory")[0]


def test_the_user_of_the_unit_is_made() -> None:
    made = (SYSTEMD / "headrace.sysusers").read_text("utf-8").split()
    assert made[:2] == ["u", *values("User")]
    assert values("Group") == values("User")


def test_credentials_are_read_where_systemd_puts_them() -> None:
    text = (SYSTEMD / "credentials.conf").read_text("utf-8")
    loaded = [each.partition(":")[::2] for each in values("LoadCredential", text)]
    before, after = settings(UNIT), settings(f"{UNIT}\n{text}")
    files = [(each.tls_cert, each.tls_key, each.tokens) for each in (before, after)]
    assert [Path(source) for _, source in loaded] == list(files[0])
    assert [Path(FOLDERS["%d"], name) for name, _ in loaded] == list(files[1])


def test_the_socket_lies_in_a_folder_that_systemd_makes_for_the_group() -> None:
    text = (SYSTEMD / "unix-socket.conf").read_text("utf-8")
    found = settings(f"{UNIT}\n{text}")
    assert found.unix_socket == Path("/run") / values("RuntimeDirectory", text)[0] / "headrace.sock"
    assert found.unix_socket_mode == 0o660
    assert values("RuntimeDirectoryMode", text) == ["0750"]
    assert found.allow_client_shared_memory
    check_exposure(found)
    assert "AF_UNIX" in values("RestrictAddressFamilies")[0]


def test_every_file_is_named_in_the_guide() -> None:
    guide = (SYSTEMD / "README.md").read_text("utf-8")
    assert all(each.name in guide for each in SYSTEMD.iterdir() if each.suffix != ".md")
