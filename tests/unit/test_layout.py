"""The shape of the code base: imports flow downwards only."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOTS = ("proto", "server", "plugins", "client")
# Which packages of ours each package may import, beside itself.
ALLOWED = {
    "headrace.v1": set(),
    "headrace.oip": set(),
    "headrace.protobuf": set(),
    "headrace.wire": {"headrace.protobuf", "headrace.v1"},
    "headrace.http2": set(),
    "headrace.ipc": set(),
    "headrace.runtime": {"headrace.ipc", "headrace.protobuf"},
    "headrace.sdk": {"headrace.runtime"},
    "headrace.plugins": {"headrace.runtime", "headrace.sdk"},
    "headrace.testing": {"headrace.runtime", "headrace.sdk"},
    "headrace.client": {
        "headrace.ipc",
        "headrace.protobuf",
        "headrace.wire",
        "headrace.v1",
        "headrace.http2",
    },
    "headrace.program": {"headrace.client"},
    "headrace.cluster": {
        "headrace.runtime",
        "headrace.server",
        "headrace.oip",
        "headrace.wire",
        "headrace.v1",
    },
    "headrace.server": {
        "headrace.runtime",
        "headrace.ipc",
        "headrace.http2",
        "headrace.protobuf",
        "headrace.wire",
        "headrace.v1",
        "headrace.oip",
    },
}
# The packages of the runtime, each of which may import those before it, at run time or for types.
RUNTIME = (
    "system",
    "errors",
    "config",
    "intake",
    "network",
    "transform",
    "pipelines",
    "execution",
    "metrics",
    "cache",
    "device",
    "virtual",
    "isolation.wire",
    "isolation.worker",
    "isolation.server",
    "sequences",
    "responses",
    "loading",
    "core",
)
# What a package must not import of others'.
FORBIDDEN = {
    "headrace.runtime": {"grpc", "grpc_status", "prometheus_client"},
    "headrace.sdk": {"grpc", "grpc_status", "prometheus_client"},
    "headrace.plugins": {"grpc", "grpc_status"},
    "headrace.wire": {"onnx", "onnx_ir", "onnxruntime"},
    "headrace.protobuf": {"grpc", "google", "asyncio", "numpy"},
    "headrace.ipc": {"grpc", "grpc_status", "asyncio", "onnx", "onnx_ir", "onnxruntime"},
    "headrace.http2": {"grpc", "grpc_status", "asyncio", "socket", "threading"},
    "headrace.client": {"onnx", "onnx_ir", "onnxruntime", "prometheus_client"},
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


class Facts(NamedTuple):
    """What a module's code says.

    Attributes:
        imports: every module and name that it imports, at its head or inside a function: of
            ``from a import b`` both ``a`` and ``a.b``.
        classes: those that other modules may use.
        packed: the lines of calls that pack arguments into a tuple.
    """

    imports: frozenset[str]
    classes: list[str]
    packed: list[int]


@cache
def facts(module: str) -> Facts:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    names: set[str] = set()
    packed = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                assert node.level == 0, f"{module}: relative import in line {node.lineno}"
                names |= {str(node.module), *(f"{node.module}.{each.name}" for each in node.names)}
            case ast.Call() if any(map(is_packed, node.args)):
                packed.append(node.lineno)
    classes = [each.name for each in tree.body if isinstance(each, ast.ClassDef)]
    return Facts(frozenset(names), [each for each in classes if each[0] != "_"], packed)


def is_packed(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple)


def ours(module: str) -> set[str]:
    """The packages of ours that a module imports from."""
    names = (name for name in facts(module).imports if name.startswith("headrace."))
    return {package_of(name) for name in names}


def theirs(module: str) -> set[str]:
    """The packages of others that a module imports from."""
    return {name.split(".")[0] for name in facts(module).imports}


def is_package(module: str) -> bool:
    return MODULES[module].name == "__init__.py"


def inside(root: str) -> list[str]:
    """The modules below a package, without the packages' own."""
    return [name for name in MODULES if name.startswith(f"{root}.") and not is_package(name)]


def neighbours(module: str) -> set[str]:
    """The modules of ours that a module imports, without packages' own."""
    names = {name for name in facts(module).imports if name in MODULES and not is_package(name)}
    return names - {module}


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


def test_imports_within_the_runtime_flow_downwards() -> None:
    floors = {name: RUNTIME.index(room_of(name)) for name in inside("headrace.runtime")}
    upwards = [
        (module, name)
        for module, floor in floors.items()
        for name in neighbours(module) & set(floors)
        if floors[name] > floor
    ]
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


def test_the_packages_of_a_plugin_have_names_that_mean_the_same_in_every_plugin() -> None:
    inner = {tuple(name.split(".")[2:4]) for name in MODULES if name.count(".") > 3}
    of_plugins = {each for each in inner if each[0] in DEVICES}
    usual = {(device, room) for device in DEVICES for room in ("backend", "claims", "running")}
    assert of_plugins <= usual | {("cpu", "guards"), ("hetero", "planning")}


def test_the_modules_are_found() -> None:
    assert "headrace.runtime.errors" in MODULES
    assert {package_of(name) for name in MODULES} <= set(ALLOWED)


def test_imports_flow_downwards() -> None:
    strays = {
        module: there
        for module in MODULES
        if (there := ours(module) - ALLOWED[package_of(module)] - {package_of(module)})
    }
    assert not strays


def test_no_package_imports_what_it_must_do_without() -> None:
    strays = {
        module: there
        for module in MODULES
        if (there := theirs(module) & FORBIDDEN.get(package_of(module), set()))
    }
    assert not strays


def test_only_the_export_needs_the_extra_of_opentelemetry() -> None:
    those = {module for module in MODULES if "opentelemetry" in theirs(module)}
    assert those == {"headrace.server.tracing.otlp", "headrace.client.tracing.calls"}


@pytest.mark.parametrize("root", ROOTS)
def test_the_namespace_is_shared_by_all_roots(root: str) -> None:
    for namespace in (REPOSITORY / root).rglob("headrace"):
        assert not (namespace / "__init__.py").exists()
    assert not (REPOSITORY / root / "headrace" / "plugins" / "__init__.py").exists()


def test_every_package_says_that_it_is_typed() -> None:
    """A namespace cannot say it for its parts, so each package brings a py.typed of its own."""
    packages = set()
    for module, path in MODULES.items():
        depth = 3 if package_of(module) == "headrace.plugins" else 2
        packages.add(Path(*path.relative_to(REPOSITORY).parts[: 1 + depth]))
    assert [each for each in packages if not (REPOSITORY / each / "py.typed").is_file()] == []


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


def test_the_author_of_a_plugin_is_shown_imports_of_the_sdk_alone() -> None:
    allowed = {"headrace.sdk", "headrace.testing", "headrace.plugins", "headrace.client"}
    for place, code in code_of_plugin_authors().items():
        shown = set(re.findall(r"^\s*(?:from|import) (headrace[\w.]*)", code, re.MULTILINE))
        assert {package_of(name) for name in shown if name != "headrace"} <= allowed, place
        plugins = [name for name in shown if "headrace.plugins" in name]
        assert all(".template" in name for name in plugins), place


SHARED_NAMES = {
    "an error, as the server raises it and as the client does": {
        "AlreadyExists",
        "Cancelled",
        "DeadlineExceeded",
        "FailedPrecondition",
        "Internal",
        "InvalidArgument",
        "NotFound",
        "PermissionDenied",
        "ResourceExhausted",
        "Unauthenticated",
        "Unavailable",
        "Unimplemented",
    },
    "what the server has, and what it tells the client of it": {
        "Device",
        "Graph",
        "LayerProfile",
        "Port",
        "QueryResult",
        "RepositoryVersion",
        "Subgraph",
        "UnsupportedLayer",
    },
    "what the client says, and what the server understands": {
        "InputOptions",
        "OutputOptions",
        "Range",
    },
    "the same for threads and for asyncio": {
        "BalancedClient",
        "BalancedNetwork",
        "Client",
        "InferMany",
        "InferRequest",
        "Session",
        "Watch",
    },
    "for the server what was given, for the client what is loaded; both are public": {"Network"},
    "each device's own answer to the same question": {"LayerSupport"},
}
"""Class names that more than one module may have, by the reason."""


def class_names() -> dict[str, list[str]]:
    """The modules of each class that other modules may use."""
    found: dict[str, list[str]] = {}
    for module in MODULES:
        for name in facts(module).classes:
            found.setdefault(name, []).append(module)
    return found


def test_a_class_name_means_one_thing() -> None:
    twice = {name: modules for name, modules in class_names().items() if len(modules) > 1}
    allowed = set().union(*SHARED_NAMES.values())
    assert {name: twice[name] for name in twice.keys() - allowed} == {}
    assert allowed - twice.keys() == set()


def test_no_call_packs_its_arguments_into_a_tuple() -> None:
    """`call(*(one, other))` saves a line and costs a reader the place of each argument."""
    packed = {module: lines for module in MODULES if (lines := facts(module).packed)}
    assert packed == {}


STATES = {"Aborted", "Cancelled", "Disconnected", "Stopped", "Unauthenticated", "Unimplemented"}
"""Errors that are called by their status."""


def test_no_class_is_called_by_a_participle_alone() -> None:
    participles = {name for name in class_names() if re.fullmatch("[A-Z][a-z]+ed", name)}
    assert participles == STATES
