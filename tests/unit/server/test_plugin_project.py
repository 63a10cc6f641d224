"""`headrace plugin new`: what it writes, and what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.client.cli.app import make_app
from headrace.runtime.errors import AlreadyExists, InvalidArgument
from headrace.server.plugin_project.project import check_device, project_files, write_project

REPOSITORY = Path(__file__).parents[3]
TEMPLATE = REPOSITORY / "plugins/headrace/plugins/template"
NAMES = ["ACME", "ACME_NPU2", "A" * 32]


def words(code: str) -> list[str]:
    """All that stands in the code, whatever the order of its imports."""
    return sorted(re.findall(r"[\w.]+|[^\w\s]", code))


def renamed(code: str) -> str:
    """The code of device ACME as TEMPLATE's would be."""
    code = code.replace("headrace_acme", "headrace.plugins.template")
    return code.replace("Acme", "Template").replace("ACME", "TEMPLATE")


def test_the_code_is_that_of_template_under_another_name() -> None:
    made = project_files("ACME")
    for path in TEMPLATE.glob("*.py"):
        ours = path.read_text(encoding="utf-8").replace(" Copy it to write your own.", "")
        ours = ours.replace("Template Device Full Name", "TEMPLATE")
        theirs = renamed(made[f"src/headrace_acme/{path.name}"])
        assert words(theirs) == words(ours)


def test_every_file_of_template_is_there_and_nothing_of_its_name_is_left() -> None:
    made = project_files("ACME")
    files = {f"src/headrace_acme/{path.name}" for path in TEMPLATE.iterdir() if path.is_file()}
    assert {path for path in made if path.startswith("src/")} == files
    assert not any("template" in text.lower() for text in made.values())


def test_the_conformance_test_is_that_of_template_under_another_name() -> None:
    ours = (REPOSITORY / "tests/conformance/test_template.py").read_text(encoding="utf-8")
    theirs = project_files("ACME")["tests/test_conformance.py"]
    assert words(renamed(theirs)) == words(ours)
    assert len(theirs.splitlines()) < 20


@pytest.mark.parametrize("device", NAMES)
def test_the_project_declares_the_device(device: str) -> None:
    made = project_files(device)
    project = tomllib.loads(made["pyproject.toml"])["project"]
    package = f"headrace_{device.lower()}"
    assert project["entry-points"] == {"headrace.plugins": {device: f"{package}:create_plugin"}}
    assert project["name"] == package.replace("_", "-")
    assert project["dependencies"] == ["headrace[server]>=0.1,<0.2"]
    assert f"src/{package}/plugin.py" in made


@pytest.mark.parametrize("device", NAMES)
def test_the_code_is_clean(device: str, tmp_path: Path) -> None:
    write_project(device, tmp_path / "project")
    first = 'lint.isort.known-first-party=["headrace"]'
    own = f'lint.isort.known-local-folder=["headrace_{device.lower()}"]'
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet"]
    command += ["--select", "E,W,F,I,B,UP", "--line-length", "125", "--config", first]
    done = subprocess.run([*command, "--config", own, tmp_path], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    "name", ["", "acme", "1ACME", "_ACME", "ACME_", "AC__ME", "AC-ME", "ACME.0", "A" * 33, "../X"]
)
def test_what_cannot_be_a_device_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="not a name for a device") as raised:
        check_device(name, ())
    assert raised.value.field == "NAME"


@pytest.mark.parametrize("name", ["HETERO", "AUTO", "CPU"])
def test_the_name_of_another_device_is_refused(name: str) -> None:
    with pytest.raises(AlreadyExists, match=name):
        check_device(name, {"CPU": object()})


@pytest.mark.parametrize("kind", ["folder", "file", "broken link"])
def test_what_exists_is_left_as_it_is(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if kind == "folder":
        place.mkdir()
    elif kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(AlreadyExists, match="exists already"):
        write_project("ACME", place)
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    assert place.is_symlink() or not place.is_dir() or not any(place.iterdir())


def test_a_place_that_cannot_be_written_is_refused_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidArgument, match="cannot be made"):
        write_project("ACME", tmp_path / "file" / "project")


def test_the_command_writes_beside_the_caller_and_says_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["plugin", "new", "ACME_NPU"]
    result = CliRunner().invoke(make_app(arguments), arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "headrace-acme-npu/src/headrace_acme_npu/plugin.py").is_file()
    assert "headrace-acme-npu" in result.stdout
    assert "(in a clone of it: pip install '.[server]')" in result.stdout
    again = CliRunner().invoke(make_app(arguments), arguments)
    assert again.exit_code == 1
    assert again.stderr.startswith("error: --directory: headrace-acme-npu exists")


def test_the_command_refuses_a_bad_name_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("../acme", "CPU"):
        arguments = ["plugin", "new", name]
        result = CliRunner().invoke(make_app(arguments), arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: NAME: ")
    assert not list(tmp_path.iterdir())
