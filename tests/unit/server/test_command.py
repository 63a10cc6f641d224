"""``headrace serve``, where its settings are wrong: nothing starts, and one line says why."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headrace.runtime.errors import InvalidArgument
from headrace.server.command import serve

PORT = "port in the command line cannot be 'x'; allowed: an integer from 0 to 65535"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the environment's, for the server reads them all."""
    monkeypatch.setattr("os.environ", {})


def refused(*arguments: str) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(serve)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    return result


def test_a_setting_that_the_message_names_is_not_named_twice() -> None:
    assert refused("--port", "x").stderr == f"error: {PORT}\n"


def test_a_setting_that_the_message_does_not_name_comes_before_it() -> None:
    said = refused("--config", "/config/none.toml").stderr
    assert said.startswith("error: config: cannot read the configuration file /config/none.toml: ")


@pytest.mark.parametrize("how", ["option", "environment"])
def test_where_the_log_is_json_it_is_a_line_of_the_log(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "environment":
        monkeypatch.setattr("os.environ", {"HEADRACE_LOG_FORMAT": "json"})
        result = refused("--port", "x")
    else:
        result = refused("--port", "x", "--log-format", "JSON")
    line = json.loads(result.stderr)
    assert (line["level"], line["field"], line["event"]) == ("error", "port", PORT)
    assert line["timestamp"]


def test_so_it_is_where_the_file_says_so_and_what_is_wrong_is_found_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text("log_format = 'json'", "utf-8")

    def run(serving: Coroutine[object, object, None], *, loop_factory: object) -> None:
        serving.close()
        raise InvalidArgument("it is taken", field="port")

    monkeypatch.setattr("uvloop.run", run)
    line = json.loads(refused("--config", str(file)).stderr)
    assert (line["field"], line["event"]) == ("port", "port: it is taken")


def test_for_programs_it_is_an_object() -> None:
    assert json.loads(refused("--port", "x", "--json").stderr) == {
        "error": {
            "code": "INVALID_ARGUMENT",
            "message": PORT,
            "reason": "INVALID_ARGUMENT",
            "field": "port",
        }
    }
