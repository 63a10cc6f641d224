"""What ``headrace tune`` writes into a network.toml."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.client.cli.app import make_app
from headrace.client.cli.failures import CommandFailure
from headrace.client.cli.tune.candidates import Variant
from headrace.client.cli.tune.description import DescriptionFile

TWO_STREAMS = Variant("OPENVINO", {"NUM_STREAMS": "2"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "network.toml"


def written(path: Path, said: str, choice: Variant = TWO_STREAMS) -> str:
    path.write_text(said)
    DescriptionFile(path).write(choice)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return path.read_text()


def test_all_else_stays_comments_too(path: Path) -> None:
    said = """\
# Our network.
max_batch_size = 8  # as the camera has it

[traffic]
2 = 10

[config]  # of the device
PERF_COUNT = "YES"  # for the dashboard
"""
    text = written(path, said)
    assert tomllib.loads(text) == {
        "max_batch_size": 8,
        "device": "OPENVINO",
        "traffic": {"2": 10},
        "config": {"PERF_COUNT": "YES", "NUM_STREAMS": "2"},
    }
    for line in said.splitlines():
        assert line in text.splitlines()


def test_line_ends_stay_as_they_are(path: Path) -> None:
    path.write_bytes(b"# Our network.\r\n[config]\r\nA = '1'\r\n")
    DescriptionFile(path).write(TWO_STREAMS)
    text = path.read_bytes()
    assert text.startswith(b"# Our network.\r\n")
    assert text.count(b"\r\n") == text.count(b"\n") == text.count(b"\r")


@pytest.mark.parametrize(
    ("said", "config"),
    [
        ('device = "CPU"\n[config]\nNUM_STREAMS = 4\n', {"NUM_STREAMS": "2"}),
        ('config.A = "1"\n', {"A": "1", "NUM_STREAMS": "2"}),
        ('config = {A = "1"}\n[traffic]\n2 = 10\n', {"A": "1", "NUM_STREAMS": "2"}),
        ("[traffic]\n2 = 10\n", {"NUM_STREAMS": "2"}),
        ("", {"NUM_STREAMS": "2"}),
        ("# nothing yet", {"NUM_STREAMS": "2"}),
    ],
)
def test_the_device_and_the_keys_of_the_choice_take_the_place_of_others(
    path: Path, said: str, config: dict[str, str]
) -> None:
    found = tomllib.loads(written(path, said))
    assert (found["device"], found["config"]) == ("OPENVINO", config)
    before = tomllib.loads(said)
    assert found == {**before, "device": "OPENVINO", "config": config}


def test_the_default_has_no_keys(path: Path) -> None:
    assert tomllib.loads(written(path, "", Variant("CPU", {}))) == {"device": "CPU"}


def test_a_file_that_is_not_there_is_made_also_in_a_folder(tmp_path: Path) -> None:
    DescriptionFile(tmp_path).write(TWO_STREAMS)
    found = tomllib.loads((tmp_path / "network.toml").read_text())
    assert found == {"device": "OPENVINO", "config": {"NUM_STREAMS": "2"}}


def test_a_link_stays_a_link_and_a_file_keeps_who_may_read_it(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    file, link = tmp_path / "kept" / "real.toml", tmp_path / "network.toml"
    file.write_text("")
    file.chmod(0o640)
    link.symlink_to(file)
    DescriptionFile(link).write(TWO_STREAMS)
    assert link.is_symlink()
    assert 'device = "OPENVINO"' in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_if_it_cannot_be_written_the_old_file_stays_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path.write_text("max_batch_size = 8\n")
    file = DescriptionFile(path)
    monkeypatch.setattr("headrace.client.cli.tune.description.os.fsync", full)
    with pytest.raises(CommandFailure, match="No space left"):
        file.write(TWO_STREAMS)
    assert path.read_text() == "max_batch_size = 8\n"
    assert [*path.parent.iterdir()] == [path]


def run(path: Path) -> Result:
    words = ["tune", "m", "--server", "127.0.0.1:1", "--write", str(path)]
    return CliRunner().invoke(make_app(words), words)


@pytest.mark.parametrize("said", [b"device = ", b"a = 1\na = 2\n", b"\xff", b"config = 3\n"])
def test_a_file_that_says_nothing_valid_is_refused_before_all_else(path: Path, said: bytes) -> None:
    path.write_bytes(said)
    result = run(path)
    assert result.exit_code == 1
    assert str(path) in result.stderr
    assert "leave --write out" in result.stderr
    assert path.read_bytes() == said


def test_a_folder_that_is_not_there_is_refused_before_all_else(tmp_path: Path) -> None:
    result = run(tmp_path / "absent" / "network.toml")
    assert result.exit_code == 1
    assert "its folder is missing" in result.stderr


def test_a_folder_that_is_not_there_is_refused_and_no_file_takes_its_name(tmp_path: Path) -> None:
    result = run(tmp_path / "mistyped")
    assert result.exit_code == 1
    assert "its folder is missing" in result.stderr
