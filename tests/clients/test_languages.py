"""The manual's programs in Node, Go and C++ work as they stand, with the commands that build them.

Debian's packages are on the page; npm downloads Node's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import REPOSITORY, Serving, load_over_rest

PAGE = REPOSITORY.joinpath("docs/use/other-languages.md").read_text("utf-8")
SECONDS = 300
LARGEST = "0.6321"
"""Of the softmax of 0 to 15: 1 - 1/e, nearly."""
PROGRAMS = {
    "Node": ("js", "infer.js", ("node", "npm")),
    "Go": ("go", "infer.go", ("go", "protoc", "protoc-gen-go")),
    "C++": ("cpp", "infer.cc", ("g++", "protoc", "grpc_cpp_plugin", "pkg-config")),
}


@pytest.fixture(scope="module")
def network(serving: Serving) -> str:
    """The name of a network as the page wants it."""
    load_over_rest(serving, "softmax")
    return "softmax"


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("language", PROGRAMS)
def test_the_program_prints_the_largest_number(
    language: str, network: str, serving: Serving, tmp_path: Path
) -> None:
    syntax, file, tools = PROGRAMS[language]
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"{', '.join(missing)} not found")
    part = PAGE.partition(f"## {language}\n")[2].partition("\n## ")[0]
    (script,) = re.findall(r"```sh\n(.*?)```", part, re.DOTALL)
    (program,) = re.findall(rf"```{syntax}\n(.*?)```", part, re.DOTALL)
    tmp_path.joinpath(file).write_text(program.replace('"m"', f'"{network}"'), "utf-8")
    shutil.copy(REPOSITORY / "proto/headrace/oip/open_inference.proto", tmp_path)
    done = subprocess.run(
        ["sh", "-ec", script.replace("localhost:9000", serving.grpc)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == LARGEST
