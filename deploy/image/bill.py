"""Writes what an image holds: a CycloneDX bill of materials, and a list of all licences.

    bill.py VARIANT ENVIRONMENT SYSTEM OUT

ENVIRONMENT is the virtual environment of headrace, SYSTEM a folder with the image's `/var/lib/dpkg`
and `/usr/share/doc`. The tools that it runs lie beside the Python that runs it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from debian.copyright import Copyright, Error, NotMachineReadableError

BIN = Path(sys.executable).parent
SPECIFICATION = "1.6"
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)
COMMON_LICENCE = re.compile(r"/usr/share/common-licenses/([\w.+-]*[\w+])")


def made_by(*command: str | Path) -> Any:
    """The JSON that a tool prints."""
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(distribution: Distribution) -> str:
    """The licence that a Python package's metadata name, in one line; empty if they name none."""
    metadata = distribution.metadata
    lines = str(metadata["License"] or "").splitlines() if "License" in metadata else []
    return lines[0].strip() if lines else ""


def python_texts(distribution: Distribution) -> list[str]:
    """The files with a Python package's licences, from the environment's root."""
    named = {
        str(path)
        for path in distribution.files or ()
        if ".dist-info" in path.parts[0] and LICENCE_FILE.match(path.name)
    }
    return sorted(named)


def debian_licences(copyright_file: Path) -> list[str]:
    """The names of licences in a Debian package's copyright file; empty if it has only texts."""
    text = copyright_file.read_text("utf-8")
    try:
        parsed = Copyright(text.splitlines(keepends=True), strict=False)
    except (NotMachineReadableError, Error, ValueError):
        return sorted(set(COMMON_LICENCE.findall(text)))
    named = [each.license for each in parsed.all_files_paragraphs()]
    return sorted({each.synopsis for each in named if each and each.synopsis})


def names(component: Any) -> Iterator[str]:
    """The licences of a component."""
    for each in component.get("licenses", ()):
        licence = each.get("license", {})
        name = each.get("expression") or licence.get("id") or licence["name"]
        yield name.removeprefix("License :: OSI Approved :: ")


def named(licences: list[str]) -> list[Any]:
    return [{"license": {"name": each}} for each in licences]


def python_part(environment: Path) -> tuple[Any, list[str]]:
    """The Python packages as CycloneDX, and their lines in the list."""
    bill = made_by(
        BIN / "cyclonedx-py", "environment", "--sv", SPECIFICATION, environment / "bin" / "python"
    )
    (site,) = environment.glob("lib/python3.*/site-packages")
    installed = {normalized(each.name): each for each in distributions(path=[str(site)])}
    lines = []
    for component in bill["components"]:
        distribution = installed[normalized(component["name"])]
        texts = python_texts(distribution)
        if not component.get("licenses"):
            component["licenses"] = named([declared(distribution) or f"see {' '.join(texts)}"])
        licences = " AND ".join(names(component))
        where = " ".join(str(site / each) for each in texts)
        lines.append(f"{component['name']} {component['version']}: {licences} {where}".rstrip())
    return bill, lines


def debian_part(system: Path) -> tuple[Any, list[str]]:
    """The Debian packages as CycloneDX, and the lines of those that are installed."""
    bill = made_by(
        BIN / "debsbom", "generate", "--sbom-type", "cdx", "--cdx-schema-version", SPECIFICATION,
        "--no-recommends-deps", "--root", system, "--out", "-",
    )  # fmt: skip
    lines = []
    for component in bill["components"]:
        if component["purl"].endswith("arch=source"):
            continue
        text = Path("usr/share/doc") / component["name"] / "copyright"
        licences = debian_licences(system / text)
        component["licenses"] = named(licences or [f"see /{text}"])
        listed = ", ".join(licences) or "see"
        lines.append(f"{component['name']} {component['version']}: {listed} /{text}")
    return bill, lines


def merged(variant: str, python: Any, debian: Any) -> Any:
    """One bill of the image."""
    system = debian["metadata"]["component"]
    (headrace,) = (each for each in python["components"] if each["name"] == "headrace")
    image = {"ref": "image", "dependsOn": [headrace["bom-ref"], system["bom-ref"]]}
    return {
        **python,
        "metadata": {
            **python["metadata"],
            "component": {
                "bom-ref": "image",
                "type": "container",
                "name": "headrace",
                "version": headrace["version"],
                "licenses": headrace["licenses"],
                "properties": [{"name": "headrace:variant", "value": variant}],
            },
        },
        "components": [*python["components"], system, *debian["components"]],
        "dependencies": [image, *python["dependencies"], *debian["dependencies"]],
    }


def main(variant: str, environment: str, system: str, out: str) -> None:
    python, python_lines = python_part(Path(environment))
    debian, debian_lines = debian_part(Path(system))
    bill = json.dumps(merged(variant, python, debian), indent=1)
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill)
    if fault is not None:
        sys.exit(f"the bill of materials does not follow CycloneDX {SPECIFICATION}: {fault}")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sbom.cdx.json").write_text(bill + "\n", "utf-8")
    parts = ("Python packages", *sorted(python_lines), "", "Debian packages", *sorted(debian_lines))
    (folder / "licenses.txt").write_text("\n".join(parts) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
