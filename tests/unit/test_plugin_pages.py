"""The code that the pages about device plugins show is the code that runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from headrace.runtime.device.compiled_plugin import CompiledPlugin
from headrace.runtime.device.executable_network import ExecutableNetwork
from headrace.runtime.execution.job import Job

REPOSITORY = Path(__file__).parents[2]
PAGES = ("docs/develop/writing-a-plugin.md", "docs/develop/testing-a-plugin.md")
TEXT = "".join((REPOSITORY / page).read_text(encoding="utf-8") for page in PAGES)
QUOTES = re.findall(r"<!-- (\S+) -->\n```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(("path", "code"), QUOTES)
def test_a_quote_is_what_stands_in_the_file(path: str, code: str) -> None:
    lines = (REPOSITORY / path).read_text(encoding="utf-8").splitlines()
    quoted = code.splitlines()
    starts = range(len(lines) - len(quoted) + 1)
    assert any(lines[at : at + len(quoted)] == quoted for at in starts)


def test_all_code_is_quoted() -> None:
    assert QUOTES
    assert TEXT.count("```python") == len(QUOTES)


def test_every_file_of_the_template_is_quoted() -> None:
    folder = REPOSITORY / "plugins/headrace/plugins/template"
    files = {str(path.relative_to(REPOSITORY)) for path in folder.glob("*.py")}
    assert files <= {path for path, _ in QUOTES}


def test_the_entry_point_is_the_one_of_the_project() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    shown = tomllib.loads(block)["project"]["entry-points"]["headrace.plugins"]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert shown.items() <= project["project"]["entry-points"]["headrace.plugins"].items()


def test_every_hook_that_is_named_exists() -> None:
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    hooks = set(re.findall(r"`(_[a-z_]+)`", prose))
    assert hooks
    assert hooks <= {*dir(CompiledPlugin), *dir(ExecutableNetwork)}
    fields = set(re.findall(r"`job\.(\w+)[`.]", prose))
    assert fields
    assert fields <= set(dir(Job))
