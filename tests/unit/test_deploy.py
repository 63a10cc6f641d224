"""The files in deploy/: they parse, agree with each other and with the server's settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from prometheus_client import CollectorRegistry

from headrace.server.access.token_file import add_token
from headrace.server.addresses import check_exposure, is_loopback
from headrace.server.http.operations import operations_routes
from headrace.server.settings.settings import Settings, options
from headrace.server.settings.sources import load_settings
from headrace.server.transport.new_certificates import write_certificates

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
COMPOSE = ("compose.yaml", "compose.unix-socket.yaml")
VARIABLES = {each.variable for each in options()}


def parsed(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


@pytest.fixture
def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def test_the_image_runs_the_server_itself_as_a_user_without_rights(dockerfile: str) -> None:
    lines = dockerfile.splitlines()
    assert 'ENTRYPOINT ["headrace"]' in lines
    assert json.loads(next(line for line in lines if line.startswith("CMD"))[4:]) == ["serve"]
    assert "USER 10001:10001" in lines
    assert "STOPSIGNAL SIGTERM" in lines


def test_the_image_exposes_the_ports_that_the_server_listens_on(dockerfile: str) -> None:
    assert f"EXPOSE {Settings().port} {Settings().http_port}" in dockerfile


def instructions(dockerfile: str, kind: str) -> list[str]:
    """The arguments of every instruction of a kind, continued lines joined."""
    joined = dockerfile.replace("\\\n", " ")
    return re.findall(rf"^{kind} +(.*)$", joined, re.MULTILINE)


def test_the_image_s_command_is_one_that_the_distribution_installs(dockerfile: str) -> None:
    (program,) = json.loads(instructions(dockerfile, "ENTRYPOINT")[0])
    (command,) = json.loads(instructions(dockerfile, "CMD")[0])
    assert program in PROJECT["scripts"]
    assert command in PROJECT["entry-points"]["headrace.commands"]


def test_every_variant_of_the_image_is_an_extra_and_explained(dockerfile: str) -> None:
    (system,) = (each for each in instructions(dockerfile, "RUN") if "PACKAGES" in each)
    cases = re.findall(r"((?:\w+ \| )*\w+)\) packages=", system)
    variants = {each.strip() for case in cases for each in case.split("|")}
    assert variants == {"cpu", "openvino", "opencl", "cuda"}
    assert variants - {"cpu"} <= set(PROJECT["optional-dependencies"])
    guide = (DEPLOY / "README.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([a-z]+)` \|", guide, re.MULTILINE)) == variants


@pytest.mark.parametrize("shell", ["scripts/image.sh", "deploy/image/install.sh"])
def test_what_builds_the_image_is_sound_shell(shell: str) -> None:
    subprocess.run(["sh", "-n", str(ROOT / shell)], check=True)
    assert os.access(ROOT / shell, os.X_OK)


def test_the_image_has_the_locale_that_onnx_runtime_wants(dockerfile: str) -> None:
    (made,) = re.findall(r"localedef --no-archive -i en_US -f UTF-8 (\S+);", dockerfile)
    assert f"COPY --from=build {made} {made}" in dockerfile.rpartition("\nFROM ")[2]


def test_the_image_is_built_from_all_that_the_wheel_needs_and_what_is_let_in(
    dockerfile: str,
) -> None:
    copied = {
        source
        for each in instructions(dockerfile, "COPY")
        if not each.startswith("--from")
        for source in each.split()[:-1]
    }
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    wheel = {each.partition("/")[0] for each in build["targets"]["wheel"]["only-include"]}
    assert copied == wheel | {"pyproject.toml", "LICENSE", PROJECT["readme"], "deploy/image"}
    assert all((ROOT / each).exists() for each in copied)
    ignored, *let_in = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert ignored == "*"
    assert copied <= {each.removeprefix("!") for each in let_in}


def test_every_folder_of_the_image_is_made_declared_and_mounted(dockerfile: str) -> None:
    folders = set(json.loads(instructions(dockerfile, "VOLUME")[0]))
    (environment,) = instructions(dockerfile, "ENV")
    settings = dict(re.findall(r"(HEADRACE_\w+)=(\S+)", environment))
    named = {Path(value) for value in settings.values() if value.startswith("/")}
    assert {str(path.parent if path.suffix else path) for path in named} == folders
    made = re.search(r"mkdir -p ([/\w ]+)", dockerfile)
    assert made is not None
    assert set(made[1].split()) == folders
    (compose,) = parsed("compose.yaml")
    service = compose["services"]["headrace"]
    assert {re.sub(r"^.*?:(/\w+)(:ro)?$", r"\1", each) for each in service["volumes"]} == folders
    # The root file system is read-only, and uploads go to /tmp.
    assert service["tmpfs"] == ["/tmp"]


def test_compose_probes_a_path_that_is_answered() -> None:
    paths = {each.path for each in operations_routes(CollectorRegistry(), lambda: None)}
    (compose,) = parsed("compose.yaml")
    check = compose["services"]["headrace"]["healthcheck"]["test"][-1]
    address = re.search(r"https://127\.0\.0\.1:(\d+)(/\w+)", check)
    assert address is not None
    assert int(address[1]) == Settings().http_port
    assert address[2] in paths


def test_compose_publishes_the_ports_on_this_machine_alone() -> None:
    (compose,) = parsed("compose.yaml")
    ports = {name: each["ports"] for name, each in compose["services"].items()}
    own = (Settings().port, Settings().http_port)
    assert ports["headrace"] == [f"127.0.0.1:{each}:{each}" for each in own]
    assert all(each.startswith("127.0.0.1:") for listed in ports.values() for each in listed)


def test_compose_runs_the_image_of_this_version(local: Any) -> None:
    (compose,) = parsed("compose.yaml")
    image = f"headrace:{PROJECT['version']}"
    for each in (compose["services"]["headrace"], local["services"]["client"]):
        assert each["image"] == f"${{HEADRACE_IMAGE:-{image}}}"


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_follows_the_specification(name: str) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    ended = subprocess.run(
        [*checker, str(DEPLOY / name)], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture
def local() -> Any:
    """What is added for clients of a Unix socket."""
    (found,) = parsed("compose.unix-socket.yaml")
    return found


def test_a_client_without_a_network_shares_the_folder_of_the_server_s_socket(local: Any) -> None:
    server, client = local["services"]["headrace"], local["services"]["client"]
    settings = load_settings({}, server["environment"])
    assert settings.unix_socket is not None
    assert settings.allow_client_shared_memory
    assert client["environment"]["HEADRACE_SERVER"] == f"unix:{settings.unix_socket}"
    assert client["network_mode"] == "none"
    mount = f"sockets:{settings.unix_socket.parent}"
    assert server["volumes"] == client["volumes"] == [mount]


def test_the_folder_of_the_socket_belongs_to_the_user_of_the_image(
    local: Any, dockerfile: str
) -> None:
    (user,) = instructions(dockerfile, "USER")
    options = dict(
        each.split("=") for each in local["volumes"]["sockets"]["driver_opts"]["o"].split(",")
    )
    assert f"{options['uid']}:{options['gid']}" == user
    assert int(options["mode"], 8) & 0o007 == 0


def test_the_guide_builds_the_image_of_this_version() -> None:
    tags = set(re.findall(r"headrace:(\d[\w.]*)", (DEPLOY / "README.md").read_text("utf-8")))
    assert tags == {PROJECT["version"]}


@pytest.mark.parametrize("name", ["Dockerfile", *COMPOSE, "README.md"])
def test_every_variable_is_a_setting(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    # Compose's own are the folder on the host and the image. The client reads HEADRACE_TOKEN.
    others = {"HEADRACE_MODELS", "HEADRACE_IMAGE", "HEADRACE_TOKEN", "HEADRACE_SERVER"}
    assert set(re.findall(r"HEADRACE_[A-Z_]+", text)) <= VARIABLES | others


def environment(dockerfile: str) -> dict[str, str]:
    """The settings of the image."""
    (text,) = instructions(dockerfile, "ENV")
    return dict(re.findall(r"(HEADRACE_\w+)=(\S+)", text))


def test_the_image_listens_for_others_only_with_tls_and_tokens(dockerfile: str) -> None:
    settings = load_settings({}, environment(dockerfile))
    assert not is_loopback(settings.host)
    assert not settings.allow_insecure
    assert settings.tls_cert
    assert settings.tokens
    check_exposure(settings)


@pytest.mark.parametrize("name", ["Dockerfile", *COMPOSE])
def test_nothing_that_deploys_switches_security_off(name: str) -> None:
    text = (DEPLOY / name).read_text("utf-8")
    assert "ALLOW_INSECURE" not in text
    assert "insecure_skip_verify" not in text


def test_the_commands_of_the_guide_make_the_files_that_the_image_reads(
    dockerfile: str, tmp_path: Path
) -> None:
    guide = (DEPLOY / "README.md").read_text("utf-8")
    assert guide.count(" tls new ") == guide.count(" token new trial --roles manage") == 2
    settings = load_settings({}, environment(dockerfile))
    write_certificates(tmp_path, ("localhost",), 1)
    add_token(tmp_path / "tokens.toml", "trial", ["manage"])
    read = [each for each in (settings.tls_cert, settings.tls_key, settings.tokens) if each]
    assert {each.name for each in read} <= {each.name for each in tmp_path.iterdir()}


def test_prometheus_verifies_the_server_that_it_scrapes() -> None:
    (prometheus,) = parsed("prometheus/prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    (compose,) = parsed("compose.yaml")
    assert job["scheme"] == "https"
    folder = str(Path(job["tls_config"]["ca_file"]).parent)
    assert f"secrets:{folder}:ro" in compose["services"]["prometheus"]["volumes"]
    guide = (DEPLOY / "README.md").read_text("utf-8")
    assert "run --rm headrace tls new /secrets --host headrace\n" in guide


def test_prometheus_scrapes_the_composed_server() -> None:
    (compose,) = parsed("compose.yaml")
    (prometheus,) = parsed("prometheus/prometheus.yml")
    (target,) = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in compose["services"]
    assert int(port) == Settings().http_port


def test_compose_waits_longer_than_the_server_drains() -> None:
    (compose,) = parsed("compose.yaml")
    period = compose["services"]["headrace"]["stop_grace_period"]
    assert float(period.removesuffix("s")) > Settings().grace_seconds


def test_compose_mounts_files_that_exist() -> None:
    (compose,) = parsed("compose.yaml")
    volumes = [each for service in compose["services"].values() for each in service["volumes"]]
    mounts = [each.split(":")[0] for each in volumes]
    assert all((DEPLOY / mount).exists() for mount in mounts if mount.startswith("./"))


def test_promtool_accepts_the_configuration() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("CI") == "true":
            pytest.fail("promtool is missing: apt-get install prometheus")
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    result = subprocess.run(
        [promtool, "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_the_source_distribution_has_every_file_of_the_repository() -> None:
    """Its tests read the documents, the examples and what deploys."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    builder = SdistBuilder(str(ROOT))
    packed = {file.relative_path for file in builder.recurse_included_files()}
    assert {path for path in listed if not path.startswith(".ci/")} <= packed
