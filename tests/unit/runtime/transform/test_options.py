"""What is written down of a load."""

from __future__ import annotations

import json

import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import InvalidArgument
from headrace.runtime.transform.options import (
    MAX_LABELS,
    InputOptions,
    LoadRequest,
    NetworkOptions,
    OutputOptions,
    Presentation,
    read_labels,
)

REQUEST = LoadRequest(
    "m",
    DeviceName.parse("CPU"),
    version="7",
    options=NetworkOptions(
        {"x": InputOptions(shape=(None, 3))}, {"y": OutputOptions(layout="NC", shape=())}
    ),
    presentation=Presentation(8, {"": ("cat", "dog"), "y": ("a",)}, {"all": {}}, 3),
)


def test_a_load_is_read_as_it_was_written() -> None:
    assert LoadRequest.from_json(REQUEST.to_json()) == REQUEST


def test_what_older_servers_wrote_has_no_presentation() -> None:
    facts = json.loads(REQUEST.to_json())
    del facts["presentation"], facts["version"]
    read = LoadRequest.from_json(json.dumps(facts))
    assert (read.presentation, read.version) == (Presentation(), "1")


def test_labels_are_the_lines_of_a_text() -> None:
    assert read_labels("cat\r\n dog\n\nbird", "labels.txt") == ("cat", "dog", "", "bird")
    with pytest.raises(InvalidArgument, match="at most 65536") as caught:
        read_labels("x\n" * (MAX_LABELS + 1), "labels.txt")
    assert caught.value.field == "labels.txt"
