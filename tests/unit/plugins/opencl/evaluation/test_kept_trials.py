"""What trials found is asked for once, also by the next process."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.plugins.opencl.evaluation import kept_trials
from headrace.plugins.opencl.evaluation.kept_trials import KeptTrials


class Asked:
    """Answers with a reason that depends on the network, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, network: bytes) -> str | None:
        self.count += 1
        return None if network == b"good" else f"no {network.decode()}"


def test_an_answer_is_asked_for_once_and_outlives_who_asked(tmp_path: Path) -> None:
    asked = Asked()
    for _ in range(2):
        kept = KeptTrials(tmp_path / "trials.db", "one device")
        for _ in range(2):
            assert kept.reason(b"good", asked) is None
            assert kept.reason(b"bad", asked) == "no bad"
    assert asked.count == 2


def test_another_device_or_version_is_asked_anew(tmp_path: Path) -> None:
    asked = Asked()
    for context in ("one device", "another"):
        KeptTrials(tmp_path / "trials.db", context).reason(b"good", asked)
    assert asked.count == 2


def test_a_file_that_cannot_be_used_costs_no_answer(tmp_path: Path) -> None:
    broken = tmp_path / "trials.db"
    broken.write_bytes(b"this is no database, and long enough to be read as one" * 20)
    for path in (broken, tmp_path / "missing" / "trials.db"):
        assert KeptTrials(path, "one device").reason(b"bad", Asked()) == "no bad"


def test_a_full_file_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_trials, "_MOST", 2)
    asked = Asked()
    kept = KeptTrials(tmp_path / "trials.db", "one device")
    for network in (b"a", b"b", b"c", b"c", b"a"):
        kept.reason(network, asked)
    assert asked.count == 4
