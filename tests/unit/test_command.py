"""``headrace serve``, where its settings are wrong: nothing starts, and one line says why."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner, Result

from headrace.server.command import serve

PORT = "port in the command line: 'x' is not a whole number, 0 to 65535"


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


def test_for_programs_it_is_an_object() -> None:
    assert json.loads(refused("--port", "x", "--json").stderr) == {
        "error": {
            "code": "INVALID_ARGUMENT",
            "message": PORT,
            "reason": "INVALID_ARGUMENT",
            "field": "port",
        }
    }
