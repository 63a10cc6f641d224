"""Which key signs, and where compiled networks are kept, as the settings have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.metrics import families
from headrace.server.settings.settings import Settings
from headrace.server.storage import network_cache, signing_key
from headrace.testing.counted import number

_KEY = b"k" * 32


def test_the_key_is_the_file_that_is_named_else_the_state_directorys(tmp_path: Path) -> None:
    named, state = tmp_path / "key", tmp_path / "state"
    key = signing_key(Settings(mac_key_file=named, state_dir=state))
    assert named.read_bytes().strip() == key
    assert not (state / "blob.key").exists()
    assert signing_key(Settings(mac_key_file=named)) == key
    assert signing_key(Settings(state_dir=state)) == (state / "blob.key").read_bytes().strip()


def test_without_a_place_for_it_the_key_is_another_one_each_time() -> None:
    assert signing_key(Settings()) != signing_key(Settings())


@pytest.mark.parametrize("inside", ["cache/key", "cache/deep/../key", "link/key"])
def test_a_key_inside_the_cache_is_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "cache", target_is_directory=True)
    settings = Settings(cache_dir=tmp_path / "cache", mac_key_file=tmp_path / inside)
    with pytest.raises(InvalidArgument, match="put it elsewhere") as caught:
        signing_key(settings)
    assert caught.value.field == "mac_key_file"


def test_a_state_directory_inside_the_cache_is_refused(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, state_dir=tmp_path / "state")
    with pytest.raises(InvalidArgument, match="put it elsewhere") as caught:
        signing_key(settings)
    assert caught.value.field == "state_dir"


def test_there_is_a_cache_where_a_folder_for_it_is_named(tmp_path: Path) -> None:
    assert network_cache(Settings(), _KEY) is None
    cache = network_cache(Settings(cache_dir=tmp_path / "new", max_cache_bytes=77_000), _KEY)
    assert cache is not None
    assert number(cache.counters.snapshot(), families.CACHE_CAPACITY_BYTES) == 77_000
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("setting", ["state_dir", "mac_key_file"])
def test_a_cache_that_no_restart_will_find_use_for_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, setting: str
) -> None:
    cache = tmp_path / "cache"
    network_cache(Settings(cache_dir=cache, **{setting: tmp_path / "x"}), _KEY)  # type: ignore[arg-type]
    assert caplog.text == ""
    network_cache(Settings(cache_dir=cache), _KEY)
    assert "cannot be used after a restart" in caplog.text


def test_a_file_in_the_cache_s_place_is_refused_as_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="file is not a folder"):
        network_cache(Settings(cache_dir=tmp_path / "file"), _KEY)


def test_a_cache_that_may_only_be_read_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    settings = Settings(cache_dir=tmp_path, state_dir=tmp_path)
    assert network_cache(settings, _KEY) is not None
    assert "cannot write to" in caplog.text


def test_a_key_that_cannot_be_made_is_named_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^/proc/foo: ") as caught:
        signing_key(Settings(mac_key_file=Path("/proc/foo")))
    assert caught.value.field == "mac_key_file"


def test_a_folder_that_cannot_be_made_is_refused_by_the_settings_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument) as caught:
        network_cache(Settings(cache_dir=tmp_path / "file" / "cache"), _KEY)
    assert caught.value.field == "cache_dir"
