"""The SDK has all that a plugin needs, and sends plugins for earlier versions to it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from headrace import sdk
from headrace.runtime.config import standard_keys
from headrace.runtime.device import compiled_plugin, device, executable_network
from headrace.runtime.device.plugin_source import factory_source
from headrace.runtime.errors import HeadraceError
from headrace.testing.services import services

# As CONTRIBUTING.md and TEMPLATE showed them before there was an SDK.
OLD_IMPORTS = (
    "from headrace.runtime.plugin import Plugin, plugin_api",
    "from headrace.runtime.services import Services",
    "from headrace.runtime.config import Configuration, ConfigSchema",
    "from headrace.runtime.config_key import Key",
    "from headrace.runtime.network import Network",
    "from headrace.runtime.transform import Transformation, rewriting",
    "import headrace.runtime.executable_network",
)


def annotated_with(module: ModuleType) -> Iterator[str]:
    """Every name of ours in the signatures of a module's hooks, which follow a comment."""
    source = inspect.getsource(module)
    tree = ast.parse(source)
    ours = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("headrace.")
        for alias in node.names
    }
    lines = source.splitlines()
    first = next(at for at, line in enumerate(lines, 1) if "# -- hooks of the device --" in line)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.lineno > first:
            arguments = [each.annotation for each in node.args.args]
            for annotation in filter(None, [*arguments, node.returns]):
                yield from ours & set(re.findall(r"\w+", ast.unparse(annotation)))


def test_it_names_what_it_has_and_nothing_else() -> None:
    public = {name for name in vars(sdk) if not name.startswith("_")}
    late = {"CorrectedEvaluator", "answer"}  # imported when they are used
    assert public | late == set(sdk.__all__)
    assert all(hasattr(sdk, name) for name in late)
    assert not hasattr(sdk, "absent")


@pytest.mark.parametrize("name", sdk.__all__)
def test_every_name_is_explained_alone_or_with_its_like(name: str) -> None:
    value = getattr(sdk, name)
    alike = name.isupper() or (isinstance(value, type) and issubclass(value, HeadraceError))
    assert alike or name == "UnsupportedLayer" or f"`{name}`" in str(sdk.__doc__)


def test_it_has_every_standard_key() -> None:
    keys = {key.name for key in standard_keys.STANDARD_KEYS}
    assert keys <= set(sdk.__all__)


@pytest.mark.parametrize("module", [compiled_plugin, device, executable_network])
def test_it_has_every_type_that_a_hook_takes_or_gives(module: ModuleType) -> None:
    names = set(annotated_with(module))
    assert names
    assert names <= set(sdk.__all__)


@pytest.mark.parametrize("code", OLD_IMPORTS)
def test_a_name_that_is_not_in_the_runtime_any_more_is_said_to_be_in_the_sdk(code: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"imports all it needs from headrace\.sdk"):
        exec(code, {})


def test_only_modules_of_the_runtime_are_said_to_be_there() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'headrace\.sdks'"):
        importlib.import_module("headrace.sdks")


def test_a_plugin_for_an_earlier_version_is_left_out_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "headrace_earlier.py").write_text("\n".join(OLD_IMPORTS))
    monkeypatch.syspath_prepend(tmp_path)
    with services([factory_source("EARLIER", "headrace_earlier:create_plugin")]) as offered:
        assert "EARLIER" in offered.devices.reasons()
    assert re.search(r"no headrace\.runtime\.plugin; .* headrace\.sdk", caplog.text)
    assert "headrace_earlier" not in sys.modules
