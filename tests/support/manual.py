"""The manual: its pages, the code that they show, and the tables that are made from the code."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import typer

from headrace.client import errors
from headrace.client.cli.app import make_app
from headrace.client.cli.connection import FLAGS
from headrace.plugins.cpu.backend.custom_ops import CUSTOM_OPS_LIBRARIES
from headrace.plugins.multi.running import counters as multi
from headrace.runtime.config.replicas import SCHEMA as REPLICAS_SCHEMA
from headrace.runtime.config.schema import ConfigSchema
from headrace.runtime.config.standard_keys import STANDARD_KEYS
from headrace.runtime.loading.idle import SCHEMA as IDLE_SCHEMA
from headrace.runtime.metrics.series import NOTES
from headrace.runtime.responses import network as responses
from headrace.runtime.responses.keys import SCHEMA as RESPONSES_SCHEMA
from headrace.runtime.sequences import network as sequences
from headrace.runtime.sequences.keys import SCHEMA as SEQUENCE_SCHEMA
from headrace.runtime.virtual import subgraph_counters
from tests.support import access_table, openapi
from tests.support.reference import reference
from tests.support.tables import keys_table, metrics_table, schema_table, settings_table

REPOSITORY = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md")),
)
_DEVICES_WITH_KEYS = (
    "CPU",
    "TEMPLATE",
    "OPENCL",
    "CUDA",
    "HETERO",
    "MULTI",
    "AUTO",
    "PIPELINE",
    "PROVIDER",
)
OWN_SERIES = (
    NOTES,
    subgraph_counters.EXECUTION_SECONDS,
    subgraph_counters.CUT_BYTES,
    multi.REQUESTS,
    multi.OUTAGES,
    multi.NOT_LOADED,
    *sequences.FAMILIES,
    *responses.FAMILIES,
)
_EVERYWHERE = {"--server", "--json", "--help", *FLAGS}  # options of all commands
_NOT_SHOWN = {"serve", "doctor"}  # their options are the settings


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text("utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The page's blocks of code in a language."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The arguments of all `headrace` commands in the page's shell blocks, in order."""
    lines = (line for block in blocks(page, "sh") for line in block.splitlines())
    found = [shlex.split(line, comments=True) for line in lines if line.startswith("headrace ")]
    return [words[1:] for words in found]


def section(name: str, text: str) -> str | None:
    """What stands between a marker and the next end."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    return found[1] if found else None


def _own_keys(device: str) -> str:
    """The keys that a device has beside the standard ones."""
    folder = {"AUTO": "multi"}.get(device, device.lower())  # one package has both
    config = importlib.import_module(f"headrace.plugins.{folder}.config")
    schema = getattr(config, f"{device}_SCHEMA", None) or config.SCHEMA
    shared = {key.name for key in STANDARD_KEYS}
    return schema_table(ConfigSchema(*(key for key in schema if key.name not in shared)))


def _errors_table() -> str:
    """The client's classes of errors with their statuses."""
    rows = ["| class | status | meaning |", "| --- | --- | --- |"]
    rows += [
        f"| `{kind.__name__}` | {status.name} | {inspect.cleandoc(kind.__doc__ or '')} |"
        for status, kind in errors.CLASSES.items()
    ]
    return "\n".join(rows) + "\n"


def _commands_table() -> str:
    """Every command with its arguments and options."""
    return "\n".join(_described(typer.main.get_command(make_app(["--help"])), ()))


def _described(command: Any, names: tuple[str, ...]) -> Iterator[str]:
    if names and names[0] in _NOT_SHOWN:
        return
    if hasattr(command, "list_commands"):
        context = command.make_context("headrace", [], resilient_parsing=True)
        for name in command.list_commands(context):
            yield from _described(command.get_command(context, name), (*names, name))
        return
    shown = [each for each in command.params if _EVERYWHERE.isdisjoint(each.opts)]
    arguments = [_name(each) for each in shown if each.param_type_name == "argument"]
    yield f"### {' '.join(names)}\n"
    yield f"`{' '.join(('headrace', *names, '[OPTIONS]', *arguments))}`\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    if shown:
        rows = [f"| `{_name(each)}` | {_meaning(each)} |" for each in shown]
        yield "\n".join(("| argument or option | meaning |", "| --- | --- |", *rows, ""))


def _name(parameter: Any) -> str:
    """As help shows it, but for what differs from one version of Typer to the next."""
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return name if parameter.required else f"[{name}]"
    names = ", ".join(sorted(parameter.opts, key=len))
    return names if parameter.metavar is None else f"{names} {parameter.metavar}"


def _meaning(parameter: Any) -> str:
    default = parameter.show_default if isinstance(parameter.show_default, str) else ""
    if not default and isinstance(parameter.default, str | int | float):
        default = "" if isinstance(parameter.default, bool) else str(parameter.default)
    meaning = " ".join((parameter.help or "").split())
    shown = f"{meaning} [default: {default}]" if default else meaning
    return shown.replace("|", r"\|").strip()


TABLES: dict[str, Callable[[], str]] = {
    "configuration keys": lambda: schema_table(ConfigSchema(*STANDARD_KEYS)),
    "keys of sequences": partial(schema_table, SEQUENCE_SCHEMA),
    "keys of the response cache": partial(schema_table, RESPONSES_SCHEMA),
    "keys of replicas": partial(schema_table, REPLICAS_SCHEMA),
    "keys of idle networks": partial(schema_table, IDLE_SCHEMA),
    "keys of native operators": lambda: schema_table(ConfigSchema(CUSTOM_OPS_LIBRARIES)),
    **{f"keys of {device}": partial(_own_keys, device) for device in _DEVICES_WITH_KEYS},
    "settings": settings_table,
    "network.toml": keys_table,
    "metrics": lambda: metrics_table(OWN_SERIES),
    "errors": _errors_table,
    "commands": _commands_table,
    "reference": reference,
    "access of calls": access_table.calls_table,
    "access of paths": access_table.paths_table,
}
"""What stands between two markers of a page, by the marker's name."""


def write_tables() -> None:
    """Writes every table into the page that has its markers."""
    for page in PAGES:
        text = text_of(page)
        for name, table in TABLES.items():
            if (before := section(name, text)) is not None:
                marked = f"<!-- {name} -->\n{{}}<!-- end -->"
                text = text.replace(marked.format(before), marked.format(table()))
        (REPOSITORY / page).write_text(text, "utf-8")


if __name__ == "__main__":
    write_tables()
    for path, text in openapi.files().items():
        path.write_text(text, "utf-8")
