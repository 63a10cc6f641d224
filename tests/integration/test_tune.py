"""``headrace tune`` on a running server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from headrace.client import Client
from headrace.client.cli.app import make_app
from headrace.testing import networks
from headrace.testing.case import Case, parse
from tests.integration.harness import BASIC, CALL_SECONDS, Server, until

OPEN = Case(
    "open",
    parse("m (float[N,M] x) => (float[N,M] y) { y = Add(x, x) }"),
    {"x": np.ones((3, 5), np.float32)},
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*BASIC) as server:
        server.load(networks.add(), "CPU", "m")
        server.load(networks.mlp(), "CPU", "other")
        server.load(OPEN, "CPU", "open")
        yield server


def tune(server: Server, *arguments: str, network: str = "m") -> Result:
    words = ["tune", network, "--server", server.address, *arguments]
    return CliRunner().invoke(make_app(words), words)


def test_one_way_to_load_is_chosen_and_no_network_stays(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    result = tune(
        server,
        "--json",
        "--seconds",
        "1",
        "--p99",
        "1s",
        "--devices",
        "CPU,TEMPLATE",
        "--write",
        str(path),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["candidates"]
    (choice,) = (row for row in rows if row["chosen"])
    assert {row["device"] for row in rows} == {"CPU", "TEMPLATE"}, "this server has no BATCH"
    assert (rows[0]["device"], rows[0]["config"]) == ("CPU", {})
    assert rows[0]["rounds"] == max(row["rounds"] for row in rows)
    written = tomllib.loads(path.read_text())
    assert (written["device"], written.get("config", {})) == (choice["device"], choice["config"])
    assert server.networks() == ["m", "open", "other"]


def test_fewer_bits_are_tried_where_the_user_says_how_far_answers_may_be_off(
    server: Server,
) -> None:
    arguments = ("--seconds", "0.5", "--json", "--precision", "1")
    result = tune(server, *arguments, network="other")
    assert result.exit_code == 0, result.output
    reasons = {
        row["config"]["INFERENCE_PRECISION_HINT"]: row["reason"]
        for row in json.loads(result.stdout)["candidates"]
        if row["device"] == "CPU" and "INFERENCE_PRECISION_HINT" in row["config"]
    }
    assert reasons["f16"] == ""
    assert "bf16" in reasons["bf16"]  # which CPU does not know


def test_it_stops_when_requests_of_others_come(server: Server) -> None:
    ended = threading.Event()

    def call() -> None:
        with Client(server.address) as client:
            network, inputs = client.network("other"), networks.mlp().inputs
            while not ended.is_set():
                network.infer(inputs)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        result = tune(server, "--seconds", "100000")
    finally:
        ended.set()
        caller.join()
    assert result.exit_code == 1
    assert "requests of others came: other" in result.stderr
    assert server.networks() == ["m", "open", "other"]


def test_without_requests_open_sizes_have_to_be_given(server: Server) -> None:
    server.load(OPEN, "CPU", "unused")
    result = tune(server, "--seconds", "0.2", network="unused")
    server.unload("unused")
    assert result.exit_code == 1
    assert "pass --shape x=1,2,3" in result.stderr


def test_shapes_that_the_network_does_not_take_are_refused(server: Server) -> None:
    result = tune(server, "--shape", "x=3", "--seconds", "0.2", network="open")
    assert result.exit_code == 1
    assert "cannot measure open: inputs['x'] has shape (3,)" in result.stderr


def test_requests_have_the_shapes_of_those_before(server: Server) -> None:
    server.infer("open", OPEN.inputs)
    with Client(server.address) as client:
        shapes: Any = client.network("open").get_metric("REQUEST_SHAPES")
    assert [*map(json.loads, shapes)] == [{"requests": 1, "shapes": {"x": [3, 5]}}]
    result = tune(server, "--seconds", "0.2", network="open")
    assert result.exit_code == 0, result.output
    assert "requests have the shapes of 1 that open has had" in result.stderr
    assert "chosen" in result.stdout


def test_ctrl_c_leaves_no_network_behind(server: Server) -> None:
    program = [sys.executable, "-c", "from headrace.program import main; main()"]
    command = [*program, "tune", "m", "--seconds", "100000"]
    environment = {**os.environ, "HEADRACE_SERVER": server.address}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        try:
            until(lambda: any(name.startswith("tune-") for name in server.networks()))
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=CALL_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert server.networks() == ["m", "open", "other"]
