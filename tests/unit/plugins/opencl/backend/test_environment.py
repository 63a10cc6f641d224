"""Where compiled kernels lie: in a folder that nobody else can write to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.plugins.opencl import create_plugin
from headrace.plugins.opencl.backend import environment
from headrace.runtime.errors import NotInstalled
from headrace.testing.services import services as real_services

ME = os.getuid()


def test_without_its_extra_the_device_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinygrad", None)
    told = "install headrace with its extra 'opencl'"
    with real_services() as services, pytest.raises(NotInstalled, match=told):
        create_plugin("OPENCL", services, {})


def test_the_servers_own_folder_comes_first(tmp_path: Path) -> None:
    state = tmp_path / "kept" / "OPENCL"
    assert environment.kernel_folder({"HOME": str(tmp_path)}, state, ME) == state
    assert state.stat().st_mode & 0o777 == 0o700


def test_without_one_the_users_cache_folder_is_taken(tmp_path: Path) -> None:
    given = {"XDG_CACHE_HOME": str(tmp_path)}
    assert environment.kernel_folder(given, None, ME) == tmp_path / "headrace/opencl"


def test_kernels_are_kept_in_the_folder(tmp_path: Path) -> None:
    found = environment.settings({}, tmp_path)
    assert found["CACHEDB"] == str(tmp_path / "kernels.db")
    assert found["POCL_CACHE_DIR"] == str(tmp_path / "pocl")


def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    found = environment.settings({"CACHEDB": "/there/x.db"}, tmp_path)
    assert found["CACHEDB"] == "/there/x.db"
    assert found["DEV"] == "CL"


def test_a_folder_that_others_can_write_to_is_passed_over(tmp_path: Path) -> None:
    shared, own, link = tmp_path / "shared", tmp_path / "own", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    own.mkdir()
    link.symlink_to(own)
    assert environment.private_folder([shared, link, own], ME) == own


def test_a_folder_of_somebody_else_is_passed_over(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=str(tmp_path)):
        environment.private_folder([tmp_path], ME + 1)


def test_a_place_where_no_folder_can_be_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    candidates = [tmp_path / "file" / "folder", tmp_path / "own"]
    assert environment.private_folder(candidates, ME) == tmp_path / "own"


def test_importing_the_plugin_imports_no_backend() -> None:
    text = "import sys, headrace.plugins.opencl; sys.exit('tinygrad' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
