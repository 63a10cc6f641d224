from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.runtime.metrics.counters import Counters
from headrace.server.access.access import Access
from headrace.server.access.command import app
from headrace.server.access.identity import Identity, Role
from headrace.server.access.token_file import add_token
from headrace.server.access.tokens import parse_entries, token_hash
from headrace.server.access.watched import WatchedFiles, Watcher
from headrace.server.settings.sources import load_settings
from tests.support.manual import blocks, commands
from tests.support.tokens import Signer, certificate_entry, entry, key_set


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def run(*words: str, path: Path) -> Result:
    return CliRunner().invoke(app, [*words, "--tokens", str(path)])


def made(name: str, roles: str, path: Path) -> str:
    result = run("new", name, "--roles", roles, path=path)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_a_new_token_is_printed_once_and_the_file_keeps_its_hash_only(path: Path) -> None:
    token = made("ci", "infer,read", path)
    text = path.read_text()
    assert token not in text
    assert token_hash(token) in text
    found = parse_entries(text.encode()).of_token(token)
    assert found == Identity("token:ci", frozenset({Role.INFER, Role.READ}))


def test_a_new_file_is_for_its_owner_only_and_a_changed_one_keeps_its_permissions(
    path: Path,
) -> None:
    made("a", "read", path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    made("b", "read", path)
    assert path.stat().st_mode & 0o777 == 0o640


def test_no_two_tokens_are_equal_and_each_has_256_bits(path: Path) -> None:
    tokens = {made(f"t{number}", "read", path) for number in range(8)}
    assert len(tokens) == 8
    assert {len(each) for each in tokens} == {len("hr_") + 43}


def test_revoke_removes_one_token_and_keeps_every_comment(path: Path) -> None:
    text = "# head\n\n" + "".join(
        f"# about {name}\n{entry(name, name, 'read')}# end of {name}\n\n" for name in "abc"
    )
    path.write_text(text + certificate_entry("x", "read") + "# last")
    for name in "bac":
        assert run("revoke", name, path=path).exit_code == 0
        assert parse_entries(path.read_bytes()).of_token(name) is None
        comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
        assert comments == [line for line in text.splitlines() if line.startswith("#")] + ["# last"]
    assert list(parse_entries(path.read_bytes()).certificates) == ["x"]


def test_what_new_and_revoke_write_together_is_what_was_there_before(path: Path) -> None:
    text = "# tokens\n" + entry("a", "1", "read")
    path.write_text(text)
    made("b", "manage", path)
    run("revoke", "b", path=path)
    assert path.read_text().rstrip() == text.rstrip()


def test_a_server_refuses_the_last_token_too_when_it_is_revoked(path: Path) -> None:
    """It takes an emptied file for a damaged one, and goes on with what was there."""
    token = made("ci", "read", path)
    files = WatchedFiles([path], parse_entries, field="tokens")
    assert files.value.of_token(token) is not None
    run("revoke", "ci", path=path)
    files.look()
    assert files.value.of_token(token) is None


def test_the_list_shows_names_and_roles_and_no_hashes(path: Path) -> None:
    token = made("ci", "infer,read", path)
    with path.open("a") as file:
        file.write(certificate_entry("client.test", "manage"))
    shown = run("list", path=path).stdout
    assert shown.splitlines() == ["token ci: read, infer", "certificate client.test: manage"]
    listed = run("list", "--json", path=path).stdout
    assert json.loads(listed)[0] == {"kind": "token", "name": "ci", "roles": ["read", "infer"]}
    assert token_hash(token) not in shown + listed


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("new", "ci"), "there is a token 'ci' already"),
        (("new", "x", "--roles", "infr"), "did you mean 'infer'"),
        (("new", "x", "--roles", ","), "at least one role"),
        (("new", "a b"), "is not a name"),
        (("new", 'a"\nb'), "is not a name"),
        (("revoke", "c"), "did you mean 'ci'"),
    ],
)
def test_a_wrong_command_says_why_and_changes_nothing(
    words: tuple[str, ...], problem: str, path: Path
) -> None:
    path.write_text(entry("ci", "1", "read"))
    before = path.read_bytes()
    result = run(*words, path=path)
    assert result.exit_code == 1
    assert problem in result.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["[[token]", 'token = [{name="a", sha256="', "\xff"])
def test_a_broken_file_is_named_and_left_as_it_is(text: str, path: Path) -> None:
    path.write_bytes(text.encode("latin-1"))
    for words in (("new", "x"), ("revoke", "x"), ("list",)):
        result = run(*words, path=path)
        assert (result.exit_code, str(path) in result.stderr) == (1, True)
    assert path.read_bytes() == text.encode("latin-1")


def test_a_file_with_inline_tables_is_left_as_it_is(path: Path) -> None:
    text = f'token = [{{name = "a", sha256 = "{token_hash("1")}", roles = ["read"]}}]\n'
    path.write_text(text)
    for words in (("new", "x"), ("revoke", "a")):
        assert run(*words, path=path).exit_code == 1
    assert path.read_text() == text


def test_a_link_to_the_file_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    path.write_text(entry("a", "1", "read"))
    link.symlink_to(path)
    made("b", "read", link)
    assert link.is_symlink()
    assert len(parse_entries(path.read_bytes()).tokens) == 2


def test_commands_at_the_same_time_lose_no_change(path: Path) -> None:
    begin = threading.Barrier(4)

    def add(number: int) -> str:
        begin.wait()
        return add_token(path, f"t{number}", ["read"])

    with ThreadPoolExecutor(4) as pool:
        tokens = list(pool.map(add, range(4)))
    entries = parse_entries(path.read_bytes())
    assert all(entries.of_token(each) for each in tokens)
    assert list(path.parent.iterdir()) == [path]


def test_the_commands_of_the_manual_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [words for words in commands("docs/run/security.md") if words[0] in ("token", "serve")]
    tokens = [words[1:] for words in shown if words[0] == "token"]
    served = [words[1:] for words in shown if words[0] == "serve"]
    for words in tokens:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (words, result.output)
    assert [words[0] for words in tokens] == ["new", "new", "revoke", "list"]
    assert result.stdout == "token ci-2: read, infer\n"
    (tmp_path / "keys.json").write_text(key_set([Signer()]))
    for words in served:
        names = (name.removeprefix("--").replace("-", "_") for name in words[::2])
        settings = load_settings(dict(zip(names, words[1::2], strict=True)), {})
        entrance = Access(settings, Watcher(), Counters()).entrance()
        assert entrance is not None
        assert entrance.checks


def test_the_entries_of_the_manual_are_valid() -> None:
    shown = [each for each in blocks("docs/run/security.md", "toml") if "roles = " in each]
    assert len(shown) >= 2
    for each in shown:
        parse_entries(each.replace("…", token_hash("secret")).encode())
