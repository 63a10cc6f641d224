"""`make release` refuses what cannot be released, and says why in a line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.manual import REPOSITORY

CHECK = REPOSITORY / "scripts" / "check_release.py"
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{f"GIT_{who}_NAME": "somebody" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "somebody@example.com" for who in ("AUTHOR", "COMMITTER")},
}


class Checkout:
    """A small repository that can be released."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Else git finds the repository whose hook runs the tests.
        outer = {name for name in os.environ if name.startswith("GIT_")}
        kept = {name: value for name, value in os.environ.items() if name not in outer}
        self._environment = kept | GIT
        self.git("init", "--quiet")
        self.write("pyproject.toml", '[project]\nname = "headrace"\nversion = "1.2.3"\n')
        self.write("CHANGELOG.md", "# Changelog\n\n## 1.2.3, 2027-01-31\n\n- Faster.\n")
        self.write("deploy/kustomization.yaml", "images: [{name: headrace, newTag: 1.2.3}]\n")
        self.write("docs/use/install.md", "docker run headrace:1.2.3-cuda\n")
        self.commit()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.folder, check=True, env=self._environment)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "A change")

    def check(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(CHECK), *options],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def refusal(self, *options: str) -> str:
        result = self.check(*options)
        assert result.returncode == 1
        assert result.stdout == ""
        return result.stderr.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_good_state_gives_the_version(checkout: Checkout) -> None:
    result = checkout.check()
    assert (result.stdout, result.stderr, result.returncode) == ("1.2.3\n", "", 0)


def test_a_tree_with_changes_is_refused(checkout: Checkout) -> None:
    checkout.write("new.py", "")
    assert checkout.refusal() == "The working tree has changes: commit them, or put them away."


def test_a_version_without_a_section_of_the_changelog_is_refused(checkout: Checkout) -> None:
    checkout.write("CHANGELOG.md", "# Changelog\n\n## 1.2.2, 2026-12-31\n")
    checkout.commit()
    assert checkout.refusal() == "CHANGELOG.md has no section for 1.2.3: add '## 1.2.3, DATE'."
    assert checkout.refusal("--rehearsal")


def test_a_section_without_a_day_is_refused(checkout: Checkout) -> None:
    checkout.write("CHANGELOG.md", "# Changelog\n\n## 1.2.3, not released\n")
    checkout.commit()
    assert "'1.2.3, not released': write the day" in checkout.refusal()


def test_an_older_version_than_the_changelog_s_is_refused(checkout: Checkout) -> None:
    checkout.write("CHANGELOG.md", "## 1.3.0, not released\n\n## 1.2.3, 2027-01-31\n")
    checkout.commit()
    assert "1.2.3 is an older version" in checkout.refusal()


def test_a_version_with_a_tag_is_refused(checkout: Checkout) -> None:
    checkout.git("tag", "v1.2.3")
    assert "1.2.3 is released already (tag v1.2.3): raise the version." in checkout.refusal()


@pytest.mark.parametrize("text", ["image: headrace:1.2.2", "newTag: 1.2.2-cuda"])
def test_a_file_that_names_another_image_is_refused(checkout: Checkout, text: str) -> None:
    checkout.write("deploy/other.yaml", text)
    checkout.commit()
    assert checkout.refusal() == "deploy/other.yaml names the image of 1.2.2: write 1.2.3."


def test_a_rehearsal_needs_no_date_no_clean_tree_and_may_be_tagged(checkout: Checkout) -> None:
    checkout.git("tag", "v1.2.3")
    checkout.write("CHANGELOG.md", "# Changelog\n\n## 1.2.3, not released\n")
    assert checkout.check("--rehearsal").stdout == "1.2.3\n"


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="this is no checkout")
def test_this_repository_names_its_own_version_everywhere() -> None:
    result = subprocess.run(
        [sys.executable, str(CHECK), "--rehearsal"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", result.stdout), result.stderr


def test_the_readme_compares_this_minor_version() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text("utf-8")
    (minor,) = re.findall(r'^version = "(\d+\.\d+)\.', project, re.MULTILINE)
    assert f"| headrace {minor} |" in (REPOSITORY / "README.md").read_text("utf-8")
