from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from headrace.runtime.errors import FailedPrecondition
from headrace.runtime.loading.blob_key import load_or_create_key


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "key"
    key = load_or_create_key(path)
    assert len(key) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_key(path) == key


def test_two_servers_without_a_common_file_have_different_keys(tmp_path: Path) -> None:
    assert load_or_create_key(tmp_path / "a") != load_or_create_key(tmp_path / "b")


def test_a_key_made_by_hand_is_taken_without_the_white_space_around_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text("a" * 64 + "\n")
    assert load_or_create_key(path) == b"a" * 64


@pytest.mark.parametrize("content", [b"", b"short\n", b"x" * 5000])
def test_a_file_without_a_usable_key_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(FailedPrecondition, match="remove it"):
        load_or_create_key(path)
    assert path.read_bytes() == content


def test_a_key_open_to_every_user_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "key"
    path.write_text("a" * 64)
    path.chmod(0o644)
    load_or_create_key(path)
    assert "chmod" in caplog.text


def test_servers_that_start_at_once_get_the_same_key(tmp_path: Path) -> None:
    keys: list[bytes] = []
    start = threading.Barrier(8)

    def server() -> None:
        start.wait()
        keys.append(load_or_create_key(tmp_path / "key"))

    threads = [threading.Thread(target=server) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1
