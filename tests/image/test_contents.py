"""What an image holds, and that its bill of materials says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from examples.demo import REPOSITORY
from tests.image.conftest import VERSION, Variant

pytestmark = pytest.mark.timeout(600)

FILES = """
import json, os, stat
found = {}
def walk(folder):
    for each in os.scandir(folder):
        status = each.stat(follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            found[each.path] = [status.st_ino, status.st_size]
        elif each.path not in OTHERS and os.access(each, os.R_OK):
            walk(each.path)
OTHERS = ("/proc", "/sys", "/dev", "/tmp", "/run")
walk("/")
print(json.dumps(found))
"""
PACKAGES = """
import json, subprocess
from importlib.metadata import distributions
query = ["dpkg-query", "--show", "--showformat", "${Package} ${Version}\\n"]
debian = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
python = [f"{each.name} {each.version}" for each in distributions()]
print(json.dumps({"python": sorted(python), "debian": sorted(debian)}))
"""
STALE = """
import importlib.util, json, pathlib, sysconfig
def fresh(source):
    compiled = pathlib.Path(importlib.util.cache_from_source(source))
    if not compiled.is_file():
        return False
    header, status = compiled.read_bytes()[:16], source.stat()
    stamp = int.from_bytes(header[8:12], "little"), int.from_bytes(header[12:16], "little")
    return stamp == (int(status.st_mtime), status.st_size)
sources = [each for kind in ("purelib", "stdlib") for each in
    pathlib.Path(sysconfig.get_path(kind)).rglob("*.py")]
print(json.dumps([str(each) for each in sources if not fresh(each)]))
"""
BILL = "print(open('/usr/share/doc/headrace/sbom.cdx.json').read())"
LICENCES = "import json; print(json.dumps(open('/usr/share/doc/headrace/licenses.txt').read()))"
BUILDERS = re.compile(r"(gcc|g\+\+|cc|c\+\+|clang|ld|as|make|rustc|pip|easy_install)[\d.-]*")
INSTALLERS = ("pip", "setuptools", "wheel", "ensurepip", "pytest", "hatchling", "build")


@pytest.fixture(scope="module")
def files(in_container: Callable[[str], Any]) -> dict[PurePosixPath, tuple[int, int]]:
    """Inode and bytes of every file that the image's user can list."""
    return {PurePosixPath(path): (each[0], each[1]) for path, each in in_container(FILES).items()}


@pytest.fixture(scope="module")
def packages(in_container: Callable[[str], Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = in_container(PACKAGES)
    assert len(found["python"]) > 20
    assert len(found["debian"]) > 50
    return found


@pytest.fixture(scope="module")
def bill(in_container: Callable[[str], Any]) -> Any:
    return in_container(BILL)


def test_its_size_is_what_the_manual_says(
    files: dict[PurePosixPath, tuple[int, int]], variant: Variant
) -> None:
    size = sum(dict(files.values()).values()) / 1e6
    print(f"\n{variant.image} holds {len(files)} files, {size:.0f} MB")
    guide = (REPOSITORY / "deploy" / "README.md").read_text("utf-8")
    row = re.search(rf"^\| `{variant.name}` \|.*\| ([\d,]+) MB \|", guide, re.MULTILINE)
    assert row is not None
    assert size == pytest.approx(float(row[1].replace(",", "")), rel=0.1)


def test_it_holds_nothing_that_builds_or_installs(
    files: dict[PurePosixPath, tuple[int, int]], variant: Variant
) -> None:
    programs = {path for path in files if path.parent.name in ("bin", "sbin")}
    builders = {path.name for path in programs if BUILDERS.fullmatch(path.name)}
    # PoCL compiles kernels by clang.
    assert not builders or (variant.name == "opencl" and "pip" not in builders)
    assert not {path for path in files for part in path.parts if part in INSTALLERS}
    packed = {path for path in files if path.suffix in (".whl", ".deb")}
    assert not packed


def test_it_holds_no_tests(files: dict[PurePosixPath, tuple[int, int]]) -> None:
    installed = {path for path in files if "site-packages" in path.parts}
    assert installed
    assert not {path for path in installed if {"test", "tests"} & set(path.parts)}
    assert not {path for path in installed if path.parts[-3:-1] == ("headrace", "testing")}
    assert not {path for path in installed if path.name.startswith("conftest.")}


def test_every_module_is_compiled(in_container: Callable[[str], Any]) -> None:
    """Nobody can write into the image, so what is not compiled is compiled anew at each start."""
    assert in_container(STALE) == []


def test_the_bill_of_materials_names_every_package(
    bill: Any, packages: dict[str, list[str]]
) -> None:
    def listed(kind: str) -> list[str]:
        found = [each for each in bill["components"] if f"pkg:{kind}" in each.get("purl", "")]
        binary = [each for each in found if "arch=source" not in each["purl"]]
        return sorted(f"{each['name']} {each['version']}" for each in binary)

    # headrace itself is from no index.
    assert sorted([*listed("pypi"), f"headrace {VERSION}"]) == packages["python"]
    assert listed("deb") == packages["debian"]
    assert bill["metadata"]["component"]["version"] == VERSION


def test_the_list_of_licences_names_every_package(
    in_container: Callable[[str], Any], packages: dict[str, list[str]]
) -> None:
    lines = in_container(LICENCES).splitlines()
    entries = [line for line in lines if ": " in line]
    named = {line.partition(": ")[0]: line.partition(": ")[2].split() for line in entries}
    assert sorted(named) == sorted(packages["python"] + packages["debian"])
    for package, (licence, *_) in named.items():
        assert licence, package
    texts = sorted({word for words in named.values() for word in words if word.startswith("/")})
    assert len(texts) > len(packages["debian"])
    missing = f"import json, os; print(json.dumps([x for x in {texts} if not os.path.exists(x)]))"
    assert in_container(missing) == []


@pytest.mark.parametrize("name", ["sbom.cdx.json", "licenses.txt"])
def test_the_files_beside_the_image_are_those_in_it(
    in_container: Callable[[str], Any], variant: Variant, name: str
) -> None:
    beside = REPOSITORY / "dist" / f"headrace-{VERSION}-{variant.name}.{name}"
    program = f"import json; print(json.dumps(open('/usr/share/doc/headrace/{name}').read()))"
    assert beside.read_text("utf-8") == in_container(program)
