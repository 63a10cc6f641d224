"""The state directory: networks, settings and extensions, each whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.errors import FailedPrecondition, ResourceExhausted, Unavailable
from headrace.runtime.intake.limits import Limits
from headrace.runtime.loading.entry import full_name
from headrace.runtime.loading.shadows.shadow import NO_SHADOW, Shadow
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import InputOptions, LoadRequest, NetworkOptions, Reference
from headrace.server.access.networks import owner_name
from headrace.server.state import Kept, StateDirectory
from headrace.testing import networks


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path, Limits())


def asked(name: str, **config: str) -> LoadRequest:
    return LoadRequest(name, DeviceName.parse("CPU"), config)


def save(state: StateDirectory, network: Network, *names: str) -> None:
    with state.keep_model(network) as model:
        for name in names:
            state.save_network(asked(name), model, alone=True)


def refer(state: StateDirectory, name: str) -> None:
    state.save_network(replace(asked(name), reference=Reference("classifier")), "", alone=True)


def with_model(kept: Kept) -> tuple[LoadRequest, Path]:
    assert not isinstance(kept, Reference)
    return kept


def models(folder: Path) -> int:
    return len(list((folder / "models").iterdir()))


def test_a_network_comes_back_with_its_model_and_its_request(
    state: StateDirectory, tmp_path: Path
) -> None:
    case = networks.mlp()
    with state.keep_model(case.network) as model:
        state.save_network(asked("m", PERF_COUNT="YES"), model, alone=True)
    again = StateDirectory(tmp_path, Limits())
    assert [*again.networks()] == ["m"]
    request, path = with_model(again.network("m"))
    assert request == asked("m", PERF_COUNT="YES")
    assert Network.from_bytes(path.read_bytes()).digest == case.network.digest


def test_changed_keys_of_a_network_come_back_with_it(state: StateDirectory, tmp_path: Path) -> None:
    with state.keep_model(networks.mlp().network) as model:
        state.save_network(asked("m", PERF_COUNT="YES"), model, alone=True)
    state.save_changes("m", "1", {"EXECUTION_TIMEOUT": "7", "PERF_COUNT": "NO"})
    state.save_changes("m", "1", {"QUEUE_CAPACITY": "3"})
    refer(state, "named")
    for name, version in (("m", "2"), ("named", "1"), ("none", "1")):
        state.save_changes(name, version, {"EXECUTION_TIMEOUT": "9"})
    again = StateDirectory(tmp_path, Limits())
    request, _ = with_model(again.network("m"))
    assert request == asked("m", PERF_COUNT="NO", EXECUTION_TIMEOUT="7", QUEUE_CAPACITY="3")
    assert again.network("named") == Reference("classifier")
    assert [*again.networks()] == ["m", "named"]


def test_a_network_of_the_repository_comes_back_by_what_the_client_said_of_it(
    state: StateDirectory, tmp_path: Path
) -> None:
    options = NetworkOptions({"x": InputOptions(mean=(1.0,))}, {}, {"layer": "CPU"})
    reference = Reference("classifier", "", {"PERF_COUNT": "YES"}, options)
    state.save_network(replace(asked("m", NUM_STREAMS="2"), reference=reference), "", alone=True)
    again = StateDirectory(tmp_path, Limits())
    assert ([*again.networks()], again.network("m")) == (["m"], reference)


def test_a_network_of_the_repository_keeps_no_model_and_takes_along_the_one_before(
    state: StateDirectory, tmp_path: Path
) -> None:
    save(state, networks.add().network, "m", "n")
    refer(state, "m")
    assert models(tmp_path) == 1
    refer(state, "n")
    assert models(tmp_path) == 0
    save(state, networks.add().network, "m")
    assert models(tmp_path) == 1
    assert with_model(state.network("m"))[0] == asked("m")


def test_what_was_kept_before_networks_could_refer_to_the_repository_is_read(
    state: StateDirectory, tmp_path: Path
) -> None:
    request_then = (
        '{"config": {"PERF_COUNT": "YES"}, "device": "CPU", "name": "m", "options": '
        '{"affinities": {}, "inputs": {}, "outputs": {}}, "origin": "import"}'
    )
    file = tmp_path / "networks" / "m.json"
    file.write_text(json.dumps({"request": request_then, "model": "0a1b"}), "utf-8")
    request, path = with_model(state.network("m"))
    assert request == replace(asked("m", PERF_COUNT="YES"), origin="import")
    assert path == tmp_path / "models" / "0a1b.onnx"


def test_networks_of_one_model_share_it_and_the_last_takes_it_along(
    state: StateDirectory, tmp_path: Path
) -> None:
    network = networks.add().network
    save(state, network, "a", "b")
    assert models(tmp_path) == 1
    state.forget_network("a")
    assert models(tmp_path) == 1
    state.forget_network("b")
    assert models(tmp_path) == 0
    state.forget_network("b")


def test_a_model_that_is_kept_stays_though_no_network_names_it_yet(
    state: StateDirectory, tmp_path: Path
) -> None:
    network = networks.add().network
    with state.keep_model(network) as model, state.keep_model(network):
        save(state, networks.mlp().network, "other")
        state.forget_network("other")
        assert [path.stem for path in (tmp_path / "models").iterdir()] == [model]
    assert models(tmp_path) == 0, "nobody has named it"


def test_a_network_saved_again_leaves_its_old_model_behind(
    state: StateDirectory, tmp_path: Path
) -> None:
    save(state, networks.add().network, "m")
    save(state, networks.mlp().network, "m")
    assert models(tmp_path) == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "0",
        "{}",
        '{"reference": "{}"}',
        '{"reference": {}}',
        '{"request": "{}", "model": "x"}',
        '{"request": "{\\"device\\": \\"\\"}", "model": "x"}',
        '{"request": "{\\"device\\": \\"CPU\\", \\"options\\": {\\"inputs\\": []}}", "model": "x"}',
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("9" * 5000, id="large number"),
    ],
)
def test_what_cannot_be_read_says_so_and_costs_no_model(
    text: str, state: StateDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(state, networks.add().network, "good")
    (tmp_path / "networks" / "bad.json").write_text(text, "utf-8")
    assert [*state.networks()] == ["bad", "good"]
    with pytest.raises(FailedPrecondition, match="cannot be read; load it again, or unload it"):
        state.network("bad")
    assert "bad.json" in caplog.text


def test_a_file_that_is_cut_may_need_any_model(state: StateDirectory, tmp_path: Path) -> None:
    save(state, networks.add().network, "good")
    (tmp_path / "networks" / "bad.json").write_text("{", "utf-8")
    save(state, networks.mlp().network, "third")
    state.forget_network("third")
    assert models(tmp_path) == 2


def test_settings_and_extensions_come_back(state: StateDirectory, tmp_path: Path) -> None:
    state.save_config("CPU", {"NUM_STREAMS": "2"})
    state.save_extension("CPU", b"first")
    again = StateDirectory(tmp_path, Limits())
    assert list(again.configs()) == [("CPU", {"NUM_STREAMS": "2"})]
    assert list(again.extensions()) == [("CPU", b"first")]
    assert json.loads((tmp_path / "devices" / "CPU.json").read_text("utf-8"))


def test_a_folder_that_cannot_be_written_is_said_so(state: StateDirectory, tmp_path: Path) -> None:
    network = networks.add().network
    save(state, network, "m")
    shutil.rmtree(tmp_path)
    changes: list[Callable[[], None]] = [
        lambda: save(state, network, "n"),
        lambda: state.save_network(asked("n"), "digest", alone=True),
        lambda: state.forget_network("m"),
        lambda: state.save_config("CPU", {}),
        lambda: state.save_extension("CPU", b"functions"),
    ]
    for change in changes:
        with pytest.raises(Unavailable, match="cannot write to its state directory: No such file"):
            change()


def test_a_full_disk_is_want_of_room(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write_file(path: Path, data: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("headrace.server.state.write_file", write_file)
    with pytest.raises(ResourceExhausted, match="No space left"):
        save(state, networks.add().network, "m")
    assert [*state.networks()] == []
    assert caplog.messages == [
        "the server cannot write to its state directory: No space left on device"
    ]


@pytest.mark.parametrize(
    "place", ["networks/pipe.json", "devices/CPU.json", "extensions/CPU/x.onnx"]
)
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nothing")])
def test_a_pipe_a_folder_or_a_broken_link_in_a_file_s_place_is_left_out(
    state: StateDirectory,
    tmp_path: Path,
    place: str,
    make: Callable[[Path], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = next(tmp_path.rglob("networks")).parent / place
    path.parent.mkdir(exist_ok=True)
    make(path)
    assert [*state.configs(), *state.extensions()] == []
    for name in state.networks():
        assert state.networks()[name] == ["1"]
        with pytest.raises(FailedPrecondition, match="cannot be read"):
            state.network(name)
    assert f"cannot read {path.name}" in caplog.text


def test_a_folder_in_the_place_of_a_version_keeps_no_other_from_coming_and_going(
    state: StateDirectory, tmp_path: Path
) -> None:
    (next(tmp_path.rglob("networks")) / "m@2.json").mkdir()
    save(state, networks.add().network, "m")
    assert state.networks()["m"] == ["1", "2"]
    state.forget_network("m")
    assert state.networks()["m"] == ["2"]


# -- versions --


def keep_version(state: StateDirectory, version: str, *, alone: bool = False) -> None:
    with state.keep_model(networks.add().network) as model:
        state.save_network(replace(asked("m"), version=version), model, alone=alone)


def test_each_version_of_a_network_is_kept(state: StateDirectory) -> None:
    for version in ("2", "1"):
        keep_version(state, version)
    assert state.networks() == {"m": ["1", "2"]}
    kept = state.network("m", "2")
    assert not isinstance(kept, Reference)
    assert (kept[0].name, kept[0].version) == ("m", "2")
    state.forget_network("m", ["1"])
    assert state.networks()["m"] == ["2"]
    state.forget_network("m")
    assert [*state.networks()] == []


def test_a_network_that_has_its_name_alone_takes_the_place_of_all_versions(
    state: StateDirectory,
) -> None:
    keep_version(state, "1")
    keep_version(state, "2")
    state.save_shares("m", {"1": 90})
    keep_version(state, "1", alone=True)
    assert (state.networks()["m"], state.shares()) == (["1"], {})


def test_a_reference_stands_for_all_versions(state: StateDirectory) -> None:
    keep_version(state, "1")
    keep_version(state, "2")
    reference = replace(asked("m"), reference=Reference("offered"), version="7")
    state.save_network(reference, "", alone=False)
    assert state.networks()["m"] == ["1"]
    assert isinstance(state.network("m"), Reference)
    state.forget_network("m", ["1"])  # one of the repository's versions
    assert isinstance(state.network("m"), Reference)
    keep_version(state, "2")
    assert state.networks()["m"] == ["2"]


def test_shares_are_kept_until_there_are_none(state: StateDirectory) -> None:
    state.save_shares("m", {"1": 90, "2": 10})
    assert state.shares() == {"m": {"1": 90, "2": 10}}
    state.save_shares("m", {})
    assert state.shares() == {}


@pytest.mark.parametrize("text", ["", "[]", '{"1": 101}', '{"one": 1}', '{"1": "a"}'])
def test_shares_that_cannot_be_read_are_left_out(
    state: StateDirectory, tmp_path: Path, text: str
) -> None:
    state.save_shares("m", {"1": 90})
    (file,) = tmp_path.rglob("traffic/m.json")
    file.write_text(text)
    state.save_shares("n", {"1": 50})
    assert state.shares() == {"n": {"1": 50}}


def test_a_shadow_is_kept_until_its_network_leaves(state: StateDirectory, tmp_path: Path) -> None:
    save(state, networks.mlp().network, "m")
    state.save_shadow("m", Shadow(device="CPU", percent=7))
    state.save_network(asked("m"), "", alone=True)  # another network in its place
    assert StateDirectory(tmp_path, Limits()).shadows() == {"m": Shadow(device="CPU", percent=7)}
    state.save_shadow("m", NO_SHADOW)
    assert state.shadows() == {"m": NO_SHADOW}
    state.forget_network("m", ["1"])
    assert state.shadows() == {"m": NO_SHADOW}
    state.forget_network("m")
    assert state.shadows() == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 3}',
        '{"version": "3", "percent": "5"}',
        '{"version": "3", "percent": 101}',
        '{"device": 7}',
        '{"other": 1}',
    ],
)
def test_a_shadow_that_cannot_be_read_is_left_out(
    state: StateDirectory, tmp_path: Path, text: str
) -> None:
    state.save_shadow("m", Shadow("3"))
    (file,) = tmp_path.rglob("shadows/m.json")
    file.write_text(text)
    state.save_shadow("n", Shadow("4"))
    assert state.shadows() == {"n": Shadow("4")}


def test_a_tenant_s_network_is_apart_from_others_of_the_same_name(
    state: StateDirectory, tmp_path: Path
) -> None:
    case = networks.mlp()
    names = ["m", "m@token:a", "m@token:b"]
    save(state, case.network, *names)
    with state.keep_model(case.network) as model:
        state.save_network(replace(asked("m@token:a"), version="12"), model, alone=False)
    state.save_shares("m@token:a", {"12": 100})
    again = StateDirectory(tmp_path, Limits())
    assert [*again.networks()] == names
    assert [again.networks()[name] for name in names] == [["1"], ["1", "12"], ["1"]]
    assert with_model(again.network("m@token:a", "12"))[0].name == "m@token:a"
    again.forget_network("m")
    assert [*again.networks()] == names[1:]
    again.forget_network("m@token:a")
    assert [*again.networks()] == ["m@token:b"]
    assert again.shares() == {}
    assert models(tmp_path) == 1


def test_a_name_with_the_longest_owner_can_be_kept(state: StateDirectory) -> None:
    name = full_name("n" * 128, owner_name("jwt:" + "x" * 4096))
    save(state, networks.mlp().network, name)
    with state.keep_model(networks.mlp().network) as model:
        state.save_network(replace(asked(name), version="9" * 18), model, alone=False)
    assert state.networks()[name] == ["1", "9" * 18]


def test_one_look_at_the_folder_lists_all_networks_with_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDirectory(tmp_path, Limits())
    for file in ("a", "a@10", "a@2", "b@token:c", "b@token:c@3"):
        (tmp_path / "networks" / f"{file}.json").touch()
    looks: list[str] = []
    glob = Path.glob

    def look(folder: Path, pattern: str) -> Iterator[Path]:
        looks.append(pattern)
        return glob(folder, pattern)

    monkeypatch.setattr(Path, "glob", look)
    assert state.networks() == {"a": ["1", "10", "2"], "b@token:c": ["1", "3"]}
    assert looks == ["*.json"]
