"""The shape of the code base: imports flow downwards only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOTS = ("proto", "server", "plugins", "client")
# Which packages of ours each package may import, beside itself.
ALLOWED = {
    "headrace.v1": set(),
    "headrace.oip": set(),
    "headrace.wire": {"headrace.v1"},
    "headrace.http2": set(),
    "headrace.runtime": set(),
    "headrace.sdk": {"headrace.runtime"},
    "headrace.plugins": {"headrace.runtime", "headrace.sdk"},
    "headrace.testing": {"headrace.runtime", "headrace.sdk"},
    "headrace.client": {"headrace.wire", "headrace.v1", "headrace.http2"},
    "headrace.program": {"headrace.client"},
    "headrace.cluster": {
        *("headrace.runtime", "headrace.server", "headrace.oip", "headrace.wire", "headrace.v1"),
    },
    "headrace.server": {
        "headrace.runtime",
        "headrace.http2",
        "headrace.wire",
        "headrace.v1",
        "headrace.oip",
    },
}
# The packages of the runtime, each of which may import those before it, at run time or for types.
RUNTIME = (
    *("system", "errors", "config", "intake", "network", "transform", "execution", "metrics"),
    *("cache", "device", "virtual", "isolation.wire", "isolation.worker", "isolation.server"),
    *("sequences", "loading", "core"),
)
# What a package must not import of others'.
FORBIDDEN = {
    "headrace.runtime": {"grpc", "grpc_status", "prometheus_client", "structlog"},
    "headrace.sdk": {"grpc", "grpc_status", "prometheus_client", "structlog"},
    "headrace.plugins": {"grpc", "grpc_status"},
    "headrace.wire": {"onnx", "onnx_ir", "onnxruntime"},
    "headrace.http2": {"grpc", "grpc_status", "asyncio", "socket", "threading"},
    "headrace.client": {"onnx", "onnx_ir", "onnxruntime", "prometheus_client", "structlog"},
}


def is_generated(path: Path) -> bool:
    return path.name.endswith(("_pb2.py", "_pb2_grpc.py"))


def modules() -> dict[str, Path]:
    """Every module of the four roots that a person wrote, by its dotted name."""
    found = {}
    for root in ROOTS:
        for path in sorted((REPOSITORY / root).rglob("*.py")):
            if not is_generated(path):
                parts = path.relative_to(REPOSITORY / root).with_suffix("").parts
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()
DEVICES = sorted({name.split(".")[2] for name in MODULES if name.startswith("headrace.plugins.")})


def package_of(module: str) -> str:
    """The package of ours that a module belongs to, as ``headrace.runtime``."""
    return ".".join(module.split(".")[:2])


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its head or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            assert node.module is not None
            yield node.module
            if node.module == "headrace":
                yield from (f"headrace.{alias.name}" for alias in node.names)


def is_package(module: str) -> bool:
    return MODULES[module].name == "__init__.py"


def inside(root: str) -> list[str]:
    """The modules below a package, without the packages' own."""
    return [name for name in MODULES if name.startswith(f"{root}.") and not is_package(name)]


@cache
def neighbours(module: str) -> set[str]:
    """The modules of ours that a module imports, without packages' own."""
    names = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name in MODULES and not is_package(name)} - {module}


def in_cycles(needs: Mapping[str, set[str]]) -> set[str]:
    """What is part of a cycle, or needs something that is."""
    left = dict(needs)
    while free := {name for name, needed in left.items() if not needed & set(left)}:
        left = {name: needed for name, needed in left.items() if name not in free}
    return set(left)


def room_of(module: str) -> str:
    """The package of the runtime that a module belongs to, as ``isolation.wire``."""
    own = module.removeprefix("headrace.runtime.")
    return next(room for room in RUNTIME if f"{own}.".startswith(f"{room}."))


@pytest.mark.parametrize("module", inside("headrace.runtime"))
def test_imports_within_the_runtime_flow_downwards(module: str) -> None:
    own = RUNTIME.index(room_of(module))
    upwards = {name for name in neighbours(module) if RUNTIME.index(room_of(name)) > own}
    assert not upwards


def test_no_modules_of_the_runtime_import_each_other_but_those_of_a_device() -> None:
    modules = [name for name in inside("headrace.runtime") if room_of(name) != "device"]
    assert not in_cycles({name: neighbours(name) for name in modules})


@pytest.mark.parametrize("device", DEVICES)
def test_no_packages_of_a_plugin_import_each_other(device: str) -> None:
    """A package counts as one, beside the modules that lie next to it."""
    root = f"headrace.plugins.{device}"

    def unit(module: str) -> str:
        return ".".join(module.split(".")[:4])

    needs: dict[str, set[str]] = {}
    for module in inside(root):
        others = {unit(name) for name in neighbours(module) if name.startswith(f"{root}.")}
        needs[unit(module)] = needs.get(unit(module), set()) | others - {unit(module)}
    assert not in_cycles(needs)


def test_the_modules_are_found() -> None:
    assert "headrace.runtime.errors" in MODULES
    assert {package_of(name) for name in MODULES} <= set(ALLOWED)


@pytest.mark.parametrize("module", MODULES)
def test_imports_flow_downwards(module: str) -> None:
    package = package_of(module)
    ours = {package_of(name) for name in imported(MODULES[module]) if name.startswith("headrace.")}
    assert ours <= ALLOWED[package] | {package}


@pytest.mark.parametrize("module", MODULES)
def test_no_package_imports_what_it_must_do_without(module: str) -> None:
    theirs = {name.split(".")[0] for name in imported(MODULES[module])}
    assert not theirs & FORBIDDEN.get(package_of(module), set())


@pytest.mark.parametrize("module", MODULES)
def test_only_the_export_needs_the_extra_of_opentelemetry(module: str) -> None:
    theirs = {name.split(".")[0] for name in imported(MODULES[module])}
    may = {"headrace.server.tracing.otlp", "headrace.client.tracing.calls"}
    assert "opentelemetry" not in theirs or module in may


@pytest.mark.parametrize("root", ROOTS)
def test_the_namespace_is_shared_by_all_roots(root: str) -> None:
    for namespace in (REPOSITORY / root).rglob("headrace"):
        assert not (namespace / "__init__.py").exists()
    assert not (REPOSITORY / root / "headrace" / "plugins" / "__init__.py").exists()


@pytest.mark.parametrize("module", MODULES)
def test_every_package_says_that_it_is_typed(module: str) -> None:
    """A namespace cannot say it for its parts, so each package brings a py.typed of its own."""
    depth = 3 if package_of(module) == "headrace.plugins" else 2
    parts = MODULES[module].relative_to(REPOSITORY).parts[: 1 + depth]
    assert REPOSITORY.joinpath(*parts, "py.typed").is_file()


def code_of_plugin_authors() -> dict[str, str]:
    """What an author copies or reads: TEMPLATE, its conformance test, the scaffold, the documents'
    examples."""
    template = (REPOSITORY / "plugins/headrace/plugins/template").glob("*.py")
    scaffold = (REPOSITORY / "server/headrace/server/plugin_project/files").glob("*.py.txt")
    files = (*template, *scaffold, REPOSITORY / "tests/conformance/test_template.py")
    code = {str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8") for path in files}
    for path in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        code |= {f"{path.name}, block {at}": block for at, block in enumerate(blocks, 1)}
    return code


AUTHORS = code_of_plugin_authors()


@pytest.mark.parametrize("place", AUTHORS)
def test_the_author_of_a_plugin_is_shown_imports_of_the_sdk_alone(place: str) -> None:
    shown = set(re.findall(r"^\s*(?:from|import) (headrace[\w.]*)", AUTHORS[place], re.MULTILINE))
    of_ours = {package_of(module) for module in shown if module != "headrace"}
    assert of_ours <= {"headrace.sdk", "headrace.testing", "headrace.plugins", "headrace.client"}
    assert all(".template" in module for module in shown if "headrace.plugins" in module)
