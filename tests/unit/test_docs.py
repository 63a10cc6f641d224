"""What the manual says of keys, settings, metrics, commands and devices is what the code says.

``.venv/bin/python -m tests.support.manual`` writes the generated tables anew.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from headrace.plugins.cpu.backend.custom_ops import CUSTOM_OPS_LIBRARIES, libraries
from headrace.plugins.cpu.config import SCHEMA as CPU_SCHEMA
from headrace.runtime.config.schema import MAX_KEYS, ConfigSchema
from headrace.runtime.config.standard_keys import STANDARD_KEYS
from headrace.runtime.pipelines.order import plan_of
from headrace.server.repository.description import read_description
from headrace.server.repository.model_config import ModelSettings, read_text
from headrace.server.repository.ovms import read_networks
from headrace.server.settings.sources import load_settings
from headrace.wire import bounds, codec, framing
from tests.support.manual import PAGES, REPOSITORY, TABLES, blocks, section, text_of

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
INSIDE = ("ARCHITECTURE.md", "docs/develop/inside.md")
ROOTS = ("proto", "server", "plugins", "client")


def toml_block(text: str) -> str:
    """The manual's TOML example that has `text` in it."""
    (block,) = (block for page in PAGES for block in blocks(page, "toml") if text in block)
    return block


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_the_one_that_the_code_generates(name: str) -> None:
    shown = [table for page in PAGES if (table := section(name, text_of(page))) is not None]
    assert shown == [TABLES[name]()], "run: .venv/bin/python -m tests.support.manual"


@pytest.mark.parametrize("name", sorted({*TABLES} - {"reference"}))  # it has no rows
def test_every_row_says_what_it_means(name: str) -> None:
    rows = [row for row in TABLES[name]().splitlines() if row.startswith("|")]
    assert rows
    assert not [row for row in rows if not row.rstrip(" |").count("|") or row.endswith("|  |")]


def test_the_limits_are_those_of_the_code() -> None:
    table = section("limits", text_of("docs/run/limits.md"))
    assert table is not None
    rows = table.splitlines()[2:]
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


@pytest.mark.parametrize("page", ["README.md", "docs/use/devices.md"])
def test_the_table_of_devices_names_every_plugin(page: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    table = section("devices", text_of(page))
    assert table == section("devices", text_of("README.md"))
    named = re.findall(r"^\| `(\w+)`", table or "", re.MULTILINE)
    assert set(named) == set(project["entry-points"]["headrace.plugins"])


def test_the_table_of_extras_names_every_extra() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    table = text_of("docs/use/install.md").partition("| extra |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {
        *project["optional-dependencies"]
    }


def test_the_first_page_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= 150


def test_the_first_page_links_every_page() -> None:
    linked = set(re.findall(r"\((docs/[\w/-]+\.md)", text_of("README.md")))
    assert linked == {*PAGES} - {"README.md", "docs/index.md"}


def test_the_first_page_and_the_index_have_one_order_of_pages() -> None:
    rows = [row for row in text_of("README.md").splitlines() if row.startswith("|") and "](" in row]
    cells = [row.strip("|").split("|") for row in rows if "docs/" in row]
    columns = [
        re.findall(r"\(docs/([\w/-]+)\.md", " ".join(column)) for column in zip(*cells, strict=True)
    ]
    sections = {
        caption: lines.split()
        for caption, lines in re.findall(
            r":caption: ([^\n]+)\n:maxdepth: 1\n\n(.*?)\n```", text_of("docs/index.md"), re.DOTALL
        )
    }
    assert columns[:3] == [sections[each] for each in ("Use it", "Devices", "Run a server")]
    assert columns[3] == [each for each in sections["Extend it"] if each.startswith("develop/")] + [
        *sections["Results"]
    ]


def test_the_example_of_a_network_description_is_read_as_it_stands(tmp_path: Path) -> None:
    folder = tmp_path / "classifier"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"never read")
    (folder / "labels.txt").write_text("cat\ndog\n")
    (folder / "network.toml").write_text(toml_block("[inputs.x]"), "utf-8")
    description = read_description("classifier", folder, ModelSettings())
    request = description.request
    assert (description.policy.latest, description.traffic) == (2, {"2": 10})
    assert (request.presentation.labels[""], request.presentation.max_batch_size) == (
        ("cat", "dog"),
        32,
    )
    (warm_up,) = request.warm_ups
    assert warm_up.shapes == {"x": (1, 224, 224, 3)}
    assert str(request.device) == "CPU"
    assert ConfigSchema(*STANDARD_KEYS).resolve(request.config).explicit == set(request.config)
    assert request.options.inputs["x"].mean == (123.7, 116.3, 103.5)
    assert request.options.outputs["scores"].dtype is not None


def test_the_examples_of_triton_s_configurations_are_read_as_they_stand(tmp_path: Path) -> None:
    model, ensemble = blocks("docs/use/from-triton.md", "text")
    (tmp_path / "labels.txt").write_text("cat\ndog\ncow\n")
    settings = read_text(model.encode(), "scores", tmp_path)
    request = read_description("scores", tmp_path, settings).request
    assert (str(request.device), request.config) == ("BATCH:CPU(8)", {"NUM_STREAMS": "2"})
    assert request.presentation.labels == {"y": ("cat", "dog", "cow")}
    pipeline = read_text(ensemble.encode(), "both", tmp_path).pipeline
    assert pipeline is not None
    assert [step.network for step in plan_of(pipeline).steps] == ["prepare", "scores"]


def test_the_example_of_openvino_model_server_s_configuration_is_read_as_it_stands() -> None:
    (text,) = blocks("docs/use/from-ovms.md", "json")
    found = read_networks(text.encode(), Path("/"), Path("/models"))
    assert not found.faults
    assert str(found.models["finder"].settings.on("CPU")) == "OPENVINO.GPU"
    steps = plan_of(found.pipelines["page"].description).steps
    assert {step.name: step.axes for step in steps} == {
        "find": {},
        "read": {"x": (10,)},
        "count": {},
    }


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
    text = text_of(document)
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    missing = [target for target in targets if not (REPOSITORY / target).exists()]
    assert not missing


@pytest.mark.parametrize("document", INSIDE)
def test_every_file_that_is_named_exists(document: str) -> None:
    named = set(re.findall(r"`((?:[\w-]+/)*\w+\.py)`", text_of(document)))
    files = [str(path) for root in (*ROOTS, "tests") for path in (REPOSITORY / root).rglob("*.py")]
    assert named
    assert not [name for name in named if not any(file.endswith(f"/{name}") for file in files)]


def test_every_class_that_is_named_exists() -> None:
    text = "".join(map(text_of, INSIDE))
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


def test_the_architecture_is_short_and_draws_every_room_of_the_runtime() -> None:
    text = text_of("ARCHITECTURE.md")
    assert len(text.encode()) <= 12 * 1024
    rooms = {path.parent.name for path in (REPOSITORY / "server/headrace/runtime").glob("*/*.py")}
    drawing = text.split("```")[1]
    assert not {room for room in rooms if not re.search(rf"\b{room}\b", drawing)}


@pytest.mark.parametrize(
    ("target", "installs"),
    [("demo", ["server"]), ("serve", ["server"]), ("test", ["dev", "server"])],
)
def test_make_installs_no_more_than_is_needed(target: str, installs: list[str]) -> None:
    command = ["make", "--dry-run", "--always-make", target]
    told = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert sorted(set(re.findall(r"'\.\[(\w+)\]'", told.stdout))) == installs
