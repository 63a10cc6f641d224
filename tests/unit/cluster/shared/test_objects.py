"""Whole objects in a folder, and in a store that shows them when they are complete."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cluster.shared.objects import Objects
from headrace.runtime.errors import FailedPrecondition, InvalidArgument, NotFound


@pytest.fixture(params=["folder", "memory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "memory":
        return Objects(f"memory://{uuid.uuid4().hex}/store")
    return Objects(str(tmp_path / "store"))


def test_an_object_is_read_as_it_was_written(objects: Objects) -> None:
    assert not objects.has("models/a")
    objects.write("models/a", [b"one", memoryview(b" two")])
    assert objects.has("models/a")
    assert objects.read("models/a") == b"one two"
    objects.write("models/a", [b"new"])
    assert objects.read("models/a") == b"new"


def test_a_folder_lists_its_objects(objects: Objects) -> None:
    assert objects.names("models") == []
    for name in ("models/b", "models/a", "other/c"):
        objects.write(name, [b""])
    assert objects.names("models") == ["a", "b"]


def test_a_removed_object_is_gone(objects: Objects) -> None:
    objects.write("models/a", [b"x"])
    objects.remove("models/a")
    objects.remove("models/a")
    assert not objects.has("models/a")
    with pytest.raises(NotFound, match="models/a"):
        objects.read("models/a")


def test_the_age_of_an_object_is_that_of_its_last_change(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path))
    objects.write("models/a", [b"x"])
    assert objects.age("models/a") < 1800
    then = time.time() - 7200
    os.utime(tmp_path / "models" / "a", (then, then))
    assert 7100 < objects.age("models/a") < 7200 + 1800
    assert objects.age("models/none") == 0


def test_nobody_sees_an_object_whose_writing_failed(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path))
    objects.write("models/a", [b"old"])

    def broken() -> Iterator[bytes]:
        yield b"half"
        assert objects.read("models/a") == b"old"
        assert objects.names("models") == ["a"]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="broke"):
        objects.write("models/a", broken())
    assert objects.read("models/a") == b"old"
    assert os.listdir(tmp_path / "models") == ["a"]  # noqa: PTH208 - also hidden files


def test_an_address_that_nothing_opens_names_the_remedy() -> None:
    with pytest.raises(InvalidArgument, match="install the package") as caught:
        Objects("nosuch://bucket/folder")
    assert caught.value.field == "store"


def test_a_store_that_may_not_be_used_says_so(tmp_path: Path) -> None:
    objects = Objects(str(tmp_path))
    (tmp_path / "models").mkdir()

    def refused(_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(FailedPrecondition, match="may not use"):
        objects.write("models/a", map(refused, [None]))
