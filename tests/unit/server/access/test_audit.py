from __future__ import annotations

import errno
import json
import os
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.server.access import audit as module
from headrace.server.access.audit import (
    REFUSALS_A_SECOND,
    REFUSALS_OF_AN_ADDRESS,
    AuditLine,
    AuditLog,
    entry,
)
from tests.support.patience import PATIENCE_SECONDS


def line(number: int = 0, refusal: str = "") -> AuditLine:
    return entry("token:ci", "LoadNetwork", "ipv4:127.0.0.1:1", "OK", refusal, "id", str(number))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


def test_each_entry_is_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    log.write(line()._replace(name='a"\n\u2028\x00é' + "x" * 10_000))
    log.close()
    (found,) = read(tmp_path / "audit")
    assert found["who"] == "token:ci"
    assert found["name"].startswith('a"\n\u2028\x00é')
    assert len(found["name"]) == 512
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o600


def test_lines_are_appended_to_what_is_there(tmp_path: Path) -> None:
    for number in range(2):
        log = AuditLog(tmp_path / "audit")
        log.write(line(number))
        log.close()
    assert [each["name"] for each in read(tmp_path / "audit")] == ["0", "1"]


def test_more_refusals_than_the_bound_are_counted_and_managing_calls_are_not_lost(
    tmp_path: Path,
) -> None:
    log = AuditLog(tmp_path / "audit", clock=lambda: 1.0)
    for number in range(REFUSALS_A_SECOND + 50):
        peer = f"ipv4:10.0.{number}.1:1"
        log.write(line(number, refusal="unknown_token")._replace(peer=peer))
    log.write(line(7))
    log.close()
    lines = read(tmp_path / "audit")
    assert len([each for each in lines if "refusal" in each]) == REFUSALS_A_SECOND
    managing = [each for each in lines if each["outcome"] == "OK" and "refusal" not in each]
    assert [each["name"] for each in managing] == ["7"]
    dropped = [each for each in lines if each["outcome"] == "DROPPED"]
    assert sum(int(each["name"]) for each in dropped) == 50


def test_a_stranger_cannot_hide_the_refusals_of_others(tmp_path: Path) -> None:
    seconds = [1.0]
    log = AuditLog(tmp_path / "audit", clock=lambda: seconds[0])
    for number in range(1000):
        loud = f"ipv4:10.0.0.1:{number}"
        log.write(line(number, refusal="unknown_token")._replace(peer=loud))
    log.write(line(refusal="unknown_token")._replace(peer="ipv4:10.0.0.2:1"))
    seconds[0] = 2.0
    log.write(line(refusal="unknown_token")._replace(peer="ipv4:10.0.0.1:1"))
    log.close()
    shown = [each["peer"] for each in read(tmp_path / "audit") if "refusal" in each]
    assert len(shown) == REFUSALS_OF_AN_ADDRESS + 2
    assert shown[-2:] == ["ipv4:10.0.0.2:1", "ipv4:10.0.0.1:1"]


def test_a_disk_that_does_not_answer_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAITING", 10)
    stuck, go_on = threading.Event(), threading.Event()
    write = os.write

    def slow(descriptor: int, data: bytes) -> int:
        stuck.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", slow)
    log = AuditLog(tmp_path / "audit")
    log.write(line())
    assert stuck.wait(PATIENCE_SECONDS)
    for number in range(100):
        log.write(line(number))
    go_on.set()
    log.close()
    lines = read(tmp_path / "audit")
    assert len(lines) == 1 + 10 + 1
    assert (lines[-1]["outcome"], lines[-1]["name"]) == ("DROPPED", "90")


def test_a_log_that_cannot_be_opened_is_an_error_of_the_setting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none" / "audit", tmp_path / "pipe"):
        with pytest.raises(InvalidArgument, match=str(path)) as caught:
            AuditLog(path)
        assert caught.value.field == "audit_log"


@pytest.mark.parametrize("fits", [0, 7])
def test_lines_that_do_not_fit_on_the_disk_are_counted(
    fits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a line of which only the beginning fits does not spoil the next one."""
    full, tried = threading.Event(), queue.SimpleQueue[bytes]()
    room, write, append = [fits], os.write, AuditLog._append

    def limited(descriptor: int, data: bytes) -> int:
        if not full.is_set():
            return write(descriptor, data)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] = 0
        return write(descriptor, data[:fits])

    def noted(log: AuditLog, data: bytes) -> int:
        lost = append(log, data)
        tried.put(data)
        return lost

    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(os, "write", limited)
    monkeypatch.setattr(AuditLog, "_append", noted)
    full.set()
    log = AuditLog(tmp_path / "audit")
    for number in (10, 11, 12):
        log.write(line(number))
        while f'"name": "{number}"'.encode() not in tried.get(timeout=PATIENCE_SECONDS):
            pass  # the line about dropped ones is tried again and again
    full.clear()
    log.write(line(13))
    log.close()
    lines = (tmp_path / "audit").read_text().splitlines()
    if fits:
        assert len(lines.pop(0)) == fits
    found = [json.loads(each) for each in lines]
    assert [each["name"] for each in found if each["outcome"] == "OK"] == ["13"]
    assert sum(int(each["name"]) for each in found if each["outcome"] == "DROPPED") == 3
