"""What a performance hint makes of the machine."""

from __future__ import annotations

import pytest

from headrace.runtime.config import hints
from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.config.standard_keys import NUM_STREAMS, PERFORMANCE_HINT, STANDARD_KEYS

SCHEMA = ConfigSchema(*STANDARD_KEYS)
PROCESSORS = 4


@pytest.fixture(autouse=True)
def _processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "usable_processors", lambda: PROCESSORS)


@pytest.mark.parametrize(
    ("config", "streams", "threads"),
    [
        ({}, 4, 1),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, 4, 1),
        ({"PERFORMANCE_HINT": "LATENCY"}, 1, 4),
        ({"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": "2"}, 2, 3),
        ({"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "2"}, 2, 3),
        ({"INFERENCE_NUM_THREADS": "2"}, 2, 1),
        ({"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": "3"}, 1, 3),
        ({"NUM_STREAMS": "8"}, 8, 1),
    ],
    ids=str,
)
def test_streams_and_threads_follow_the_keys(
    config: dict[str, str], streams: int, threads: int
) -> None:
    configuration = SCHEMA.resolve(config)
    assert hints.streams(configuration) == streams
    assert hints.threads_of_a_run(configuration, streams) == threads


MILLION = 1_000_000


@pytest.mark.parametrize(
    ("work", "streams", "threads"),
    [(None, 1, 4), (4000 * MILLION, 1, 4), (25 * MILLION, 3, 2), (MILLION, 4, 1), (0, 4, 1)],
)
def test_for_latency_a_run_gets_the_threads_that_its_network_has_work_for(
    work: int | None, streams: int, threads: int
) -> None:
    config = SCHEMA.resolve({"PERFORMANCE_HINT": "LATENCY"})
    assert hints.streams(config, work) == streams
    assert hints.threads_of_a_run(config, streams, work) == threads
    shown = hints.chosen(config, streams, work).to_strings()
    assert (shown["NUM_STREAMS"], shown["INFERENCE_NUM_THREADS"]) == (str(streams), "4")


@pytest.mark.parametrize("work", [None, 1, 4000 * MILLION])
def test_for_throughput_every_thread_is_a_stream_whatever_the_network(work: int | None) -> None:
    config = SCHEMA.resolve({"PERFORMANCE_HINT": "THROUGHPUT"})
    assert hints.streams(config, work) == PROCESSORS
    assert hints.threads_of_a_run(config, PROCESSORS, work) == 1


def test_a_tiny_network_alone_on_a_stream_wakes_no_second_thread() -> None:
    config = SCHEMA.resolve({"NUM_STREAMS": "1"})
    assert hints.threads_of_a_run(config, 1, MILLION) == 1
    assert hints.chosen(config, 1, MILLION).to_strings()["INFERENCE_NUM_THREADS"] == "1"


def test_threads_that_were_asked_for_are_had_by_a_tiny_network_too() -> None:
    config = SCHEMA.resolve({"NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": "3"})
    assert hints.threads_of_a_run(config, 1, MILLION) == 3


def test_what_was_chosen_gives_the_same_again() -> None:
    for work in (None, MILLION, 25 * MILLION, 4000 * MILLION):
        for hint in ("LATENCY", "THROUGHPUT", ""):
            config = SCHEMA.resolve({"PERFORMANCE_HINT": hint})
            streams = hints.streams(config, work)
            shown = hints.chosen(config, streams, work)
            assert hints.streams(shown) == streams
            assert hints.threads_of_a_run(shown, streams) == hints.threads_of_a_run(
                config, streams, work
            )


def test_all_runs_together_take_no_more_threads_than_allowed() -> None:
    for streams in range(1, PROCESSORS + 1):
        config = SCHEMA.resolve({"NUM_STREAMS": str(streams)})
        helpers = hints.threads_of_a_run(config, streams) - 1
        assert streams + helpers == PROCESSORS


def test_a_hint_is_no_licence_for_more_than_the_machine_has() -> None:
    config = SCHEMA.resolve(
        {"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": "1000"}
    )
    assert hints.streams(config) == PROCESSORS


def test_what_was_chosen_stands_where_auto_stood() -> None:
    config = SCHEMA.resolve({"PERFORMANCE_HINT": "LATENCY"})
    shown = hints.chosen(config, hints.streams(config)).to_strings()
    assert (shown["NUM_STREAMS"], shown["INFERENCE_NUM_THREADS"]) == ("1", "4")
    assert shown["PERFORMANCE_HINT"] == "LATENCY"


def test_a_device_without_these_keys_shows_none() -> None:
    schema = ConfigSchema(PERFORMANCE_HINT)
    config = hints.chosen(schema.resolve({"PERFORMANCE_HINT": "LATENCY"}), 1)
    assert list(config.to_strings()) == ["PERFORMANCE_HINT"]
    assert config.get(NUM_STREAMS) == 0
