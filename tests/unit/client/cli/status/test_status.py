"""``headrace status`` and ``headrace top``, against a server that a test makes up."""

from __future__ import annotations

import io
import json
from typing import Any

import grpc
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from headrace.client.cli.app import make_app
from headrace.client.cli.status.top import _Screen
from headrace.wire.errors import ErrorDetails
from tests.support.client_fake import Fake
from tests.support.status_document import device, network, outcomes, times

HOSTILE = "m\n\x1b[2Jforged" + "x" * 300


@pytest.fixture
def run(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HEADRACE_SERVER", fake.target)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(make_app(arguments), list(arguments))

    return run


@pytest.fixture
def busy(fake: Fake) -> Fake:
    fake.status.facts |= {
        "devices": [
            device("CPU.0", streams_busy=2, queue_depth=7, requests=outcomes(1000)),
            device("CUDA", state="DOWN", reason="no driver", streams=None, streams_busy=None),
            device("NPU", state="NOT_INSTALLED"),
        ],
        "networks": [
            network("resnet", "CPU.0", requests=outcomes(400), request_seconds=times(0, 400)),
            network("broken", "CUDA", state="failed", reason="no driver", notes=["a note"]),
        ],
        "errors": [
            {
                "time": 3600.0,
                "request_id": "r7",
                "method": "Infer",
                "code": "NOT_FOUND",
                "message": "there is none",
                "field": "",
                "network": "gone",
                "device": "",
                "caller": "token:ci",
            }
        ],
        "certificate": {
            "expires": 1000.0 + 3 * 86_400,
            "stale": True,
            "client_certificates": False,
        },
    }
    return fake


def test_status_shows_the_server_its_devices_networks_and_errors(run: Any, busy: Fake) -> None:
    shown = run("status").stdout
    first, process, certificate, *rest = shown.splitlines()
    assert first.startswith(
        "headrace 0.1.0: ready, up 1 min, at 127.0.0.1:9000, HTTP at 127.0.0.1:9001, process 7"
    )
    assert process == "memory 512 MiB of 2 GiB, files 34/1024, threads 23, processors 2"
    assert certificate.startswith("certificate expires in 3 d 0 h; ITS FILES HAVE CHANGED")
    rows = [line.split() for line in rest]
    assert ["CPU.0", "UP", "2/2", "7/1024", "-", "-", "10.0", "0"] in rows
    assert any(row[:2] == ["CUDA", "DOWN"] and row[-2:] == ["no", "driver"] for row in rows)
    assert "NPU" not in shown
    assert any(row[:3] == ["resnet", "CPU.0", "ready"] for row in rows)
    assert "note: broken: a note" in shown
    assert any(
        row[:6] == ["01:00:00", "NOT_FOUND", "Infer", "gone", "token:ci", "r7"] for row in rows
    )


def test_status_shows_what_runs_the_shapes_of_a_network_and_why(run: Any, fake: Fake) -> None:
    row = {
        "shape": "1x3",
        "device": "OPENVINO.CPU",
        "reason": "at best 1 ms",
        "memory_bytes": 2**20,
    }
    slower = {"shape": "1x9", "device": "CPU", "reason": "slower", "memory_bytes": 0}
    fake.status.facts["networks"] = [
        network("old", "CPU.0"),
        network("m", "OPENVINO.CPU", shapes=[row, slower]),
    ]
    del fake.status.facts["networks"][0]["shapes"]  # as a server of an earlier version has it
    rows = [line.split() for line in run("status").stdout.splitlines()]
    assert ["m", "1x3", "OPENVINO.CPU", "1", "MiB", "at", "best", "1", "ms"] in rows
    assert ["m", "1x9", "CPU", "-", "slower"] in rows


def test_status_shows_what_was_answered_from_kept_replies(run: Any, fake: Fake) -> None:
    counts = {"hits_total": 1500, "misses_total": 500, "skipped_total": 7, "bytes": 2**20}
    series = [
        {"name": f"network_response_cache_{name}", "labels": {}, "value": value}
        for name, value in counts.items()
    ]
    fake.status.facts["networks"] = [network("kept", "CPU.0", series=series)]
    rows = [line.split() for line in run("status").stdout.splitlines()]
    assert ["kept", "1,500", "500", "75%", "7", "1", "MiB"] in rows
    fake.status.facts["networks"] = [network("other", "CPU.0")]
    assert "KEPT REPLIES" not in run("status").stdout


def test_status_as_json_is_the_server_s_document(run: Any, busy: Fake) -> None:
    assert json.loads(run("status", "--json", "--match", "res").stdout) == busy.status.document()
    assert busy.requests("GetStatus")[0].match == "res"


def test_names_of_others_cannot_forge_lines(run: Any, fake: Fake) -> None:
    fake.status.facts["networks"] = [network(HOSTILE, HOSTILE, state="failed", reason=HOSTILE)]
    for command in ("status", "top"):
        shown = run(command, *(["--interval", "0.1"] if command == "top" else [])).stdout
        assert "forged" in shown
        assert not any(line.startswith("forged") for line in shown.splitlines())
        assert "\x1b" not in shown


def test_top_in_a_pipe_prints_one_interval_and_ends(
    run: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(seconds: float) -> None:
        assert seconds == 2.0
        fake.status.facts["time"] += seconds
        fake.status.facts["networks"] = [network("m", "CPU.0", requests=outcomes(50))]

    monkeypatch.setattr("headrace.client.cli.status.top.time.sleep", work)
    rows = [line.split() for line in run("top", "--interval", "2").stdout.splitlines()]
    assert ["m", "CPU.0", "ready", "0", "25.0", "0", "-", "-", "-"] in rows
    fake.status.facts["networks"] = [network("m", "CPU.0")]
    found = json.loads(run("top", "--interval", "2", "--json").stdout)
    assert (found["seconds"], found["networks"][0]["rate"]) == (2.0, 25.0)


def test_top_shows_what_networks_take_and_when_they_were_used_if_there_is_a_budget(
    run: Any, fake: Fake
) -> None:
    assert "MEMORY" not in run("top", "--interval", "0.1").output
    facts = {"memory_bytes": 2**20, "idle_seconds": 130.0}
    fake.status.facts["networks"] = [network("m", "CPU.0") | facts]
    rows = [line.split() for line in run("top", "--interval", "0.1").output.splitlines()]
    assert any(row[-2:] == ["MEMORY", "IDLE"] for row in rows)
    assert any(row[-4:] == ["1", "MiB", "2", "min"] for row in rows)


def test_top_shows_how_shadows_answer_if_there_are_some(run: Any, fake: Fake) -> None:
    assert "SHADOW" not in run("top", "--interval", "0.1").output
    counts = {"equal": 12, "close": 0, "differs": 1, "failed": 0, "dropped": 0}
    shadow = {"version": "3", "device": "", "percent": 5, "requests": counts}
    on_device = {
        **shadow,
        "version": "",
        "device": "OPENVINO",
        "requests": dict.fromkeys(counts, 0),
    }
    fake.status.facts["networks"] = [
        network("m", "CPU.0", shadow=shadow),
        network("n", "CPU.0", shadow=on_device),
        network("o", "CPU.0"),
    ]
    output = run("top", "--interval", "0.1").output
    assert "version 3, 5 %: 12 equal, 1 differs" in output
    assert "OPENVINO, 5 %: none yet" in output
    rows = json.loads(run("top", "--interval", "0.1", "--json").output)["networks"]
    assert [row["shadow"] for row in rows] == [shadow, on_device, None]


@pytest.mark.parametrize("command", [("status",), ("top", "--interval", "0.1")])
def test_what_is_missing_is_named(run: Any, fake: Fake, command: tuple[str, ...]) -> None:
    fake.status.facts |= {"devices": [], "networks": [], "errors": []}
    lines = run(*command).stdout.splitlines()
    assert ("no devices" in lines, "no networks" in lines, "none" in lines) == (True, True, False)
    assert "no networks whose names contain 'res'" in run(*command, "--match", "res").stdout


def test_a_server_without_the_method_is_named_as_such(run: Any, fake: Fake) -> None:
    fake.failures.append(ErrorDetails(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
    ended = run("status")
    assert ended.exit_code == 1
    assert "Method not found" in ended.stderr


def screen_of(fake: Fake) -> _Screen:
    return _Screen(fake.target, "", 1.0, fake.status.document())


def drawn(screen: _Screen, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(screen._view(console))
    return captured.get().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10)])
@pytest.mark.parametrize(("devices", "networks"), [(0, 0), (2, 3), (40, 2), (2, 100), (40, 100)])
def test_the_view_fits_the_terminal(
    width: int, height: int, devices: int, networks: int, busy: Fake
) -> None:
    busy.status.facts["devices"] = [device(f"CPU.{at}") for at in range(devices)]
    busy.status.facts["networks"] = [
        network(HOSTILE, "CPU.0", version=str(at)) for at in range(networks)
    ]
    lines = drawn(screen_of(busy), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    shown = "\n".join(lines)
    assert ("CPU.0" in shown) == bool(devices or networks)
    assert ("no networks" in shown) == (not networks)
    assert ("forged" in shown or "…" in shown) or not networks


def test_at_80_columns_all_figures_are_readable(busy: Fake) -> None:
    rows = [line.split() for line in drawn(screen_of(busy), 80, 24)]
    assert ["DEVICE", "STATE", "STREAMS", "QUEUE", "WAIT", "EXECUTION", "PER", "S", "ERR/S"] in rows
    assert ["NETWORK", "DEVICE", "STATE", "OPEN", "PER", "S", "ERR/S", "MEAN", "P50", "P99"] in rows
    assert ["CPU.0", "UP", "2/2", "7/1024", "-", "-", "10.0", "0"] in rows


def test_top_says_that_the_server_is_gone_keeps_the_figures_and_goes_on_when_it_is_back(
    busy: Fake,
) -> None:
    screen = screen_of(busy)
    client = screen._look(None)
    assert client is not None
    assert "figures of the last" in "\n".join(drawn(screen, 80, 24))

    gone = ErrorDetails(grpc.StatusCode.UNAVAILABLE, "it is gone")
    busy.failures.extend([gone] * 4)  # the client itself tries four times
    assert screen._look(client) is None
    shown = "\n".join(drawn(screen, 80, 24))
    assert f"NO ANSWER from {busy.target}" in shown
    assert "resnet" in shown

    busy.status.facts["server"] |= {"started": 999.0}
    client = screen._look(None)
    assert client is not None
    shown = "\n".join(drawn(screen, 80, 24))
    assert "THE SERVER HAS RESTARTED, 1 time;" in shown
    assert "NO ANSWER" not in shown
    client.close()
