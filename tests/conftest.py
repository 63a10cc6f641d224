"""What all tests begin with, whatever the shell that runs them: a job in the background ignores
Ctrl-C, and an environment may name proxies, colours, or settings of a server."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import programs_forked

# What would change what the programs say or do; tests that mean one of these set it themselves.
_INHERITED = re.compile(
    r"HEADRACE_\w+|(http|https|ftp|all|no|grpc)_proxy|NO_COLOR|FORCE_COLOR|CLICOLOR\w*|COLUMNS|LINES|"
    r"TERM|LANG|LANGUAGE|LC_\w+|TZ|TERMINAL_WIDTH|_TYPER_\w+|PYTHON(?!PATH)\w+|MAKEFLAGS|GIT_\w+|"
    r"CACHEDB|POCL_CACHE_DIR|ONEDNN_\w+|DNNL_\w+|OMP_\w+|SSL_\w+|GRPC_\w+|AWS_\w+|FSSPEC_\w+|"
    r"HF_\w+|GOOGLE_\w+|STORAGE_EMULATOR_HOST",
    re.IGNORECASE,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    said = "what carries gRPC in servers that tests start; tests of hardening run on native alone"
    parser.addoption("--front-end", choices=("native", "grpcio"), default="native", help=said)


def pytest_configure(config: pytest.Config) -> None:
    for name in [name for name in os.environ if _INHERITED.fullmatch(name)]:
        del os.environ[name]
    sys.dont_write_bytecode = False  # half of the time that collecting takes, in each process
    os.environ["LANG"] = "C.UTF-8"
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # a test may load it before a device forbids it
    if config.getoption("--front-end") != "native":
        os.environ["HEADRACE_FRONT_END"] = config.getoption("--front-end")
    os.umask(0o022)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(ModuleNotFoundError):  # the environments of others' clients lack it
        settings = import_module("hypothesis").settings
        # An example may take long on a busy machine. `.ci/run` tries as many as is usual.
        examples = 100 if "CI" in os.environ else 25
        settings.register_profile("untimed", deadline=None, max_examples=examples)
        settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _programs_are_forked() -> Iterator[None]:
    with programs_forked():
        yield


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for Unix sockets, whose paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collects without the garbage collector, which would go through all that is there again and
    again. Before that, each process of xdist compiles its share of the files: all of them collect
    everything, so each would compile all files where none is compiled yet."""
    gc.disable()
    worker = getattr(session.config, "workerinput", None)
    if worker is not None:
        folders = [session.config.invocation_params.dir / each for each in session.config.args]
        files = sorted(file for folder in folders for file in folder.rglob("test_*.py"))
        share = int(worker["workerid"].removeprefix("gw"))
        for file in files[share :: worker["workercount"]]:
            name = ".".join(file.relative_to(session.config.rootpath).with_suffix("").parts)
            with suppress(Exception, pytest.skip.Exception):  # the collection meets it again
                import_module(name)
    try:
        return (yield)
    finally:
        gc.enable()


ALONE = re.compile(r"test_(openvino|onnx_runtime|tinygrad|pocl)_alone_")
"""Names of tests that show that a backend is wrong without our repair or refusal. What a backend
does is nobody's promise, so they never fail the suite: they tell whether a repair is needed."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.pluginmanager.has_plugin("tests.needed_repairs")
    parts: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    for each in items:
        parts[bool(ALONE.match(each.name)) == wanted].append(each)
    config.hook.pytest_deselected(items=parts[False])
    items[:] = parts[True]
    if config.getoption("--front-end") == "grpcio":
        for each in items:
            for marker in each.iter_markers("native_front_end"):
                each.add_marker(pytest.mark.skip(reason=marker.args[0]))


_COLLECTS = re.compile(r"^from .*\b(collect|node_tests)$", re.MULTILINE)
"""An import of what collects ONNX's backend cases. That takes ten seconds, once a process."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Gives each file to one process, and all files that collect backend cases to the same one."""
    if config.getvalue("dist") != "loadfile":
        return None
    scheduling = import_module("xdist.scheduler").LoadFileScheduling(config, log)

    @cache
    def scope(file: str) -> str:
        text = (config.rootpath / file).read_text(encoding="utf-8")
        return "backend cases" if _COLLECTS.search(text) else file

    scheduling._split_scope = lambda test: scope(test.partition("::")[0])
    return scheduling


_file: Path | None = None


@cache
def _environment() -> dict[str, str]:
    return dict(os.environ)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each file of tests begins with the same environment: devices set variables for their
    backends. And it hides what there is before it from the garbage collector. Otherwise each look
    of a test goes through all that pytest has collected, a million objects and more."""
    global _file
    if item.path != _file:
        _file = item.path
        for name in os.environ.keys() - _environment().keys():
            del os.environ[name]
        os.environ.update(_environment())
        gc.collect()
        gc.freeze()
