"""A server that is killed between two changes of its files loses nothing and leaves no rest. What
somebody damages in its cache is made anew.

The suite kills servers at some of their changes. `EVERY_KILL=1` kills them at each, and in an
isolated device, too. That takes two minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from signal import SIGKILL
from typing import IO, Any, Final

import onnx
import pytest

from headrace.testing.case import parse
from headrace.testing.networks import random

ROOT: Final = Path(__file__).parents[2]
EVERY_KILL: Final = bool(os.environ.get("EVERY_KILL"))
TEXT: Final = """m (float[N,8] x) => (float[N,8] y) {
    [one] a = MatMul(x, v)
    [two] b = Relu(a)
    [three] y = MatMul(b, w)
}"""
ON_CPU: Final = 'device = "CPU"\n'
PARTED: Final = """
device = "HETERO:CPU,TEMPLATE"
[affinities]
one = "CPU"
two = "TEMPLATE"
three = "CPU"
"""
STEPS: Final = """
[[step]]
name = "first"
model = "first.onnx"
device = "BATCH:CPU"
inputs = {x = "x"}
outputs = {between = "y"}

[[step]]
name = "second"
model = "second.onnx"
device = "CPU"
inputs = {x = "between"}
outputs = {y = "y"}

[outputs]
y = "y"
"""
SAME_SIZE: Final = (".weights", ".onnx")
"""Other files say what varies, such as when a file was changed."""


class Servers:
    """Starts servers in processes of their own, one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def start(self, order: dict[str, Any]) -> Any:
        """What a server reports, or the exit code of one that does not live to report."""
        print(json.dumps(order), file=self._process.stdin, flush=True)
        output: IO[str] | None = self._process.stdout
        assert output is not None
        return json.loads(output.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


class Place:
    """Where servers keep what they know: a state directory, a cache and temporary files.

    Args:
        folder: also has the model repository, and a client's model.
        networks: those of the model repository: the name and description of each.
        given: whether a client loads a network, too.
        settings: as `load_settings`.
    """

    def __init__(
        self,
        servers: Servers,
        folder: Path,
        networks: dict[str, str],
        *,
        given: bool = False,
        in_store: bool = False,
        **settings: str,
    ) -> None:
        self._servers = servers
        self.root = folder / "place"
        repository, model = folder / "repository", folder / "given.onnx"
        repository.mkdir()
        for seed, (name, description) in enumerate(networks.items()):
            _offer(repository / name, description, seed)
        onnx.save(_model(7), model)
        self._order = {
            "folder": str(self.root),
            "asked": [*networks, *["given"] * given],
            "given": {"given": str(model)} if given else {},
            "settings": {
                "devices": "CPU,TEMPLATE,HETERO,BATCH,PIPELINE",
                "model_repository": f"file://{repository}" if in_store else str(repository),
                "cache_dir": str(self.root / "cache"),
                "state_dir": str(self.root / "state"),
                "mac_key_file": str(folder / "key"),
                **settings,
            },
        }
        self.empty()

    def empty(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()

    def start(self, fatal: int = -1) -> Any:
        """As `Servers.start`.

        Args:
            fatal: the number of the change of files at which the server is killed; -1 for none.
        """
        return self._servers.start({**self._order, "fatal": fatal})

    def files(self) -> dict[str, int]:
        """All files and folders, with the sizes of those that always have the same size."""
        return {
            str(path.relative_to(self.root)): path.lstat().st_size * path.name.endswith(SAME_SIZE)
            for path in self.root.rglob("*")
        }


def _model(seed: int) -> onnx.ModelProto:
    weights = {"v": random(8, 16, seed=seed), "w": random(16, 8, seed=seed)}
    return parse(TEXT, weights)


def _offer(folder: Path, description: str, seed: int) -> None:
    folder.mkdir()
    if description == STEPS:
        (folder / "pipeline.toml").write_text(STEPS)
        onnx.save(_model(seed), folder / "first.onnx")
        onnx.save(_model(seed + 1), folder / "second.onnx")
        return
    (folder / "network.toml").write_text(description)
    onnx.save(
        _model(seed),
        folder / "model.onnx",
        save_as_external_data=folder.name == "apart",
        location="weights",
        size_threshold=0,
    )


KINDS: Final[dict[str, tuple[int, dict[str, str], dict[str, Any]]]] = {
    "a client's": (3, {}, {"given": True}),
    "weights apart": (5, {"apart": ON_CPU}, {}),
    "on HETERO": (9, {"parted": PARTED}, {}),
    "a pipeline": (8, {"piped": STEPS}, {}),
    "in a store": (20, {"plain": ON_CPU}, {"in_store": True}),
    **({"isolated": (1, {"plain": ON_CPU}, {"isolate_devices": "true"})} if EVERY_KILL else {}),
}
"""How many changes there are to each one that the suite kills a server at, the networks of the
repository, and options of `Place`."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_change_of_files_loses_nothing_and_leaves_no_rest(
    servers: Servers, tmp_path: Path, kind: str
) -> None:
    step, networks, options = KINDS[kind]
    place = Place(servers, tmp_path, networks, **options)
    first = place.start()
    assert place.start()["answers"] == first["answers"]
    expected = place.files()
    assert first["changes"] > 5
    for fatal in range(0, first["changes"], 1 if EVERY_KILL else step):
        place.empty()
        assert place.start(fatal) == -SIGKILL
        after = place.start()
        assert (after["answers"], after["warnings"]) == (first["answers"], []), fatal
        assert place.files().items() <= expected.items(), fatal


def _flip(files: Sequence[Path]) -> None:
    for file in files:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


def _cut(files: Sequence[Path]) -> None:
    for file in files:
        os.truncate(file, file.stat().st_size // 2)


def _empty(files: Sequence[Path]) -> None:
    for file in files:
        os.truncate(file, 0)


def _exchange(files: Sequence[Path]) -> None:
    """Puts each file in the place of the next one."""
    held = [file.read_bytes() for file in files]
    for file, other in zip(files, held[-1:] + held[:-1], strict=True):
        file.write_bytes(other)


@pytest.fixture(scope="module")
def place(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Place:
    networks = {"apart": ON_CPU, "parted": 'device = "BATCH:[HETERO:CPU]"'}
    return Place(servers, tmp_path_factory.mktemp("damaged"), networks, given=True)


@pytest.fixture(scope="module")
def answers(place: Place) -> Any:
    """Those of the servers before any damage. The second one adds what it knows of the files in
    the state directory."""
    place.start()
    return place.start()["answers"]


@pytest.mark.parametrize("folder", ["default", "files", "models", "weights"])
@pytest.mark.parametrize("damage", [_flip, _cut, _empty, _exchange])
def test_what_is_damaged_in_the_cache_is_made_anew_and_told_once(
    place: Place, answers: Any, folder: str, damage: Callable[[Sequence[Path]], None]
) -> None:
    expected, files = place.files(), sorted((place.root / "cache" / folder).iterdir())
    assert len(files) > 1
    damage(files)
    after = place.start()
    assert after["answers"] == answers
    assert 1 <= len(after["warnings"]) <= len(files)
    assert place.files() == expected
    again = place.start()
    assert (again["answers"], again["warnings"]) == (answers, [])
