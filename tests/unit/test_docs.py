"""What README.md says of keys, settings, metrics and devices is what the code says.

``.venv/bin/python tests/unit/test_docs.py`` writes the generated tables anew.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.plugins.cpu.config import SCHEMA as CPU_SCHEMA
from headrace.plugins.cpu.custom_ops import CUSTOM_OPS_LIBRARIES, libraries
from headrace.plugins.hetero import subgraph as hetero
from headrace.plugins.multi import counters as multi
from headrace.runtime.config.schema import MAX_KEYS, ConfigSchema
from headrace.runtime.config.standard_keys import STANDARD_KEYS
from headrace.runtime.intake.limits import Limits
from headrace.runtime.metrics.series import NOTES
from headrace.server.metrics import metrics_table
from headrace.server.repository import Repository
from headrace.server.settings import settings_table
from headrace.server.settings_sources import load_settings
from headrace.wire import bounds, codec, framing

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
DOCUMENTS = ("README.md", "ARCHITECTURE.md")
ROOTS = ("proto", "server", "plugins", "client")
OWN = (
    NOTES,
    *(hetero.EXECUTION_SECONDS, hetero.CUT_BYTES),
    *(multi.REQUESTS, multi.OUTAGES, multi.NOT_LOADED),
)
TABLES: dict[str, Callable[[], str]] = {
    "configuration keys": lambda: ConfigSchema(*STANDARD_KEYS).to_markdown(),
    "keys of native operators": lambda: ConfigSchema(CUSTOM_OPS_LIBRARIES).to_markdown(),
    "settings": settings_table,
    "metrics": lambda: metrics_table(OWN),
}


def section(name: str, text: str) -> str:
    """What stands between a marker and the next end."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert found is not None, f"README.md has no section marked {name!r}"
    return found[1]


def toml_block(text: str) -> str:
    """The README's TOML example that has `text` in it."""
    blocks = re.findall(r"```toml\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if text in block)
    return str(block)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_the_one_that_the_code_generates(name: str) -> None:
    remedy = "run: .venv/bin/python tests/unit/test_docs.py"
    assert section(name, README.read_text("utf-8")) == TABLES[name](), remedy


def test_the_limits_are_those_of_the_code() -> None:
    rows = section("limits", README.read_text("utf-8")).splitlines()[2:]
    assert [int(row.split("|")[2].replace(",", "")) for row in rows] == [
        framing.MAX_FIELDS,
        framing.MAX_FIELDS,
        bounds.MAX_PARTS,
        bounds.MAX_CONTROL_PARTS,
        codec.MAX_SEQUENCE_ELEMENTS,
        codec.MAX_NESTING,
        framing.MAX_FIELDS,
        MAX_KEYS,
    ]
    contract = (REPOSITORY / "proto/headrace/v1/inference_engine.proto").read_text("utf-8")
    for limit in (framing.MAX_FIELDS, bounds.MAX_PARTS, bounds.MAX_CONTROL_PARTS, MAX_KEYS):
        assert f" {limit:,}" in contract


def test_the_table_of_devices_names_every_plugin() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r"^\| `(\w+)`", section("devices", README.read_text("utf-8")), re.MULTILINE)
    assert set(named) == set(project["entry-points"]["headrace.plugins"])


def test_the_example_of_a_network_description_is_read_as_it_stands(tmp_path: Path) -> None:
    folder = tmp_path / "classifier"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"never read")
    (folder / "network.toml").write_text(toml_block("[inputs.image]"), "utf-8")
    request = Repository(tmp_path, Limits()).request("classifier")
    assert str(request.device) == "CPU"
    assert ConfigSchema(*STANDARD_KEYS).resolve(request.config).explicit == set(request.config)
    assert request.options.inputs["image"].mean == (123.7, 116.3, 103.5)
    assert request.options.outputs["scores"].dtype is not None


def test_the_example_of_a_configuration_file_is_read_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(toml_block("max_networks"), "utf-8")
    settings = load_settings({"config": str(file)}, {})
    assert settings.max_networks == 16
    assert {plugin.name: plugin.enabled for plugin in settings.plugins} == {
        "TEMPLATE": False,
        "CPU": True,
    }


def test_the_example_of_native_operators_is_read_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(toml_block(CUSTOM_OPS_LIBRARIES.name), "utf-8")
    (plugin,) = load_settings({"config": str(file)}, {}).plugins
    named = libraries(CPU_SCHEMA.resolve(plugin.config))
    assert named == ("/opt/operators/tokenizers.so", "/opt/operators/ours.so")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_to_a_file_leads_somewhere(document: str) -> None:
    text = (REPOSITORY / document).read_text("utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    missing = [target for target in targets if not (REPOSITORY / target).exists()]
    assert not missing


def test_every_module_that_the_architecture_names_exists() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text("utf-8")
    names = set(re.findall(r"`(?:[a-z_]+/)*([a-z_]+\.py)`", text))
    folders = (*ROOTS, "tests")
    known = {path.name for root in folders for path in (REPOSITORY / root).rglob("*.py")}
    assert names
    assert not names - known


def test_every_class_that_the_architecture_names_exists() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text("utf-8")
    names = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]*)+)(?:\.\w+)*`", text))
    sources = [path for root in ROOTS for path in (REPOSITORY / root).rglob("*.py")]
    known = {
        node.name
        for path in sources
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    service = (REPOSITORY / "proto/headrace/v1/inference_engine.proto").read_text("utf-8")
    rpcs = set(re.findall(r"rpc (\w+)", service))
    assert names
    assert not names - known - rpcs


def write_tables() -> None:
    """Writes every generated table into README.md."""
    text = README.read_text("utf-8")
    for name, table in TABLES.items():
        before = section(name, text)
        text = text.replace(
            f"<!-- {name} -->\n{before}<!-- end -->", f"<!-- {name} -->\n{table()}<!-- end -->"
        )
    README.write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("target", "installs"),
    [("demo", ["server"]), ("serve", ["server"]), ("test", ["dev", "server"])],
)
def test_make_installs_no_more_than_is_needed(target: str, installs: list[str]) -> None:
    command = ["make", "--dry-run", "--always-make", target]
    told = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert sorted(set(re.findall(r"'\.\[(\w+)\]'", told.stdout))) == installs


if __name__ == "__main__":
    write_tables()
