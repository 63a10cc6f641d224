"""Says whether this checkout can be released, and prints its version, which pyproject.toml has.

    python scripts/check_release.py [--rehearsal]

A rehearsal needs neither a clean tree, nor a date in the changelog, nor a version without a tag.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

# Where files name the version of the image: `headrace:1.2.3`, and kustomize's `newTag: 1.2.3`.
_IMAGES = re.compile(r"(?:\bheadrace:|\bnewTag: )(\d+\.\d+\.\d+\w*)")
_FOLDERS = ("deploy", "docs")


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def complaints(version: str, *, rehearsal: bool) -> list[str]:
    """What keeps the version from being released, each with its remedy."""
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        found.append(f"pyproject.toml: {version!r} is not a version such as 1.2.3 or 1.2.3rc1.")
    text = Path("CHANGELOG.md").read_text("utf-8")
    headings = [each.split(", ", 1) for each in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    when = next((each[-1] for each in headings if each[0] == version), None)
    if when is None:
        found.append(f"CHANGELOG.md has no section for {version}: add '## {version}, DATE'.")
    elif not rehearsal and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", when):
        found.append(f"CHANGELOG.md says '{version}, {when}': write the day, such as 2027-01-31.")
    elif headings[0][0] != version:
        found.append(f"CHANGELOG.md begins with {headings[0][0]}: {version} is an older version.")
    for path in git("ls-files", "--", *_FOLDERS).splitlines():
        others = set(_IMAGES.findall(Path(path).read_text("utf-8", "ignore"))) - {version}
        found += [f"{path} names the image of {each}: write {version}." for each in sorted(others)]
    if not rehearsal:
        if git("status", "--porcelain"):
            found.append("The working tree has changes: commit them, or put them away.")
        tag = f"v{version}"
        if git("tag", "--list", tag):
            found.append(f"{version} is released already (tag {tag}): raise the version.")
    return found


def main(*arguments: str) -> None:
    version = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]["version"]
    found = complaints(version, rehearsal="--rehearsal" in arguments)
    if found:
        sys.exit("\n".join(found))
    print(version)


if __name__ == "__main__":
    main(*sys.argv[1:])
