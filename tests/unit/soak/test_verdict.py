"""Whether a process takes more in the end than in the beginning."""

from __future__ import annotations

from tools.soak.verdict import FEW, Reading, Sample, compared, growth

MIB = 1 << 20


def readings(*megabytes: float, descriptors: int = 100, threads: int = 30) -> list[Reading]:
    return [
        {"server": Sample(number, "server", int(each * MIB), descriptors, threads)}
        for number, each in enumerate(megabytes)
    ]


def test_the_first_third_is_compared_with_the_last_by_their_medians() -> None:
    found = readings(100, 900, 102, 500, 500, 500, 103, 104, 0)
    assert compared(found, "server", "bytes") == (102 * MIB, 103 * MIB)
    assert compared(readings(100, 200), "server", "bytes") == (100 * MIB, 200 * MIB)
    assert compared(readings(100), "server", "bytes") == (100 * MIB, 100 * MIB)


def test_five_per_cent_more_memory_is_too_much_and_less_is_fine() -> None:
    assert growth(readings(100, 105)) == []
    assert growth(readings(100, 50)) == []
    (wrong,) = growth(readings(100, 106))
    assert "server has" in wrong
    assert "bytes" in wrong


def test_a_few_descriptors_and_threads_may_be_about_to_go() -> None:
    before = readings(100, descriptors=40, threads=10)
    assert growth(before + readings(100, descriptors=42 + FEW, threads=10)) == []
    (wrong,) = growth(before + readings(100, descriptors=43 + FEW, threads=10))
    assert "descriptors" in wrong
    (wrong,) = growth(before + readings(100, descriptors=40, threads=11 + FEW))
    assert "threads" in wrong


def test_a_process_that_was_away_once_is_compared_all_the_same() -> None:
    found = [*readings(100), {}, *readings(110)]
    assert len(growth(found)) == 1
