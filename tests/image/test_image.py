"""The image as its users run it: not root, a read-only root file system, no capabilities, TLS, a
token. ``make test-image VARIANT=cpu`` builds the image and runs these tests."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from examples.demo import MAGIKA, REPOSITORY, features
from headrace.client import Client, errors
from headrace.testing import networks
from tests.image.conftest import Folders, Variant
from tests.image.container import RESTRICTED, START_SECONDS, STOP_SECONDS, USER, Runner, Serving
from tests.integration.harness import until

pytestmark = pytest.mark.timeout(600)

NONE = "0" * 16
RIGHTS = r"""
import json, os
fields = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines())
fields["read-only"] = bool(os.statvfs("/").f_flag & os.ST_RDONLY)
print(json.dumps(fields))
"""


def test_the_container_has_no_rights(in_container: Callable[[str], Any]) -> None:
    found = in_container(RIGHTS)
    assert found["Uid"].split() == found["Gid"].split() == [str(USER)] * 4
    capabilities = {name: value for name, value in found.items() if name.startswith("Cap")}
    assert capabilities == dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), NONE)
    assert found["NoNewPrivs"] == "1"
    assert found["read-only"] is True


def test_the_guide_starts_the_server_with_the_same_restrictions() -> None:
    guide = (REPOSITORY / "deploy" / "README.md").read_text("utf-8").replace("\\\n", " ")
    (command,) = (line for line in guide.splitlines() if "run --rm --read-only" in line)
    assert f" {' '.join(RESTRICTED)} " in " ".join(command.split())


def test_two_lines_of_the_guide_make_certificates_and_a_token(folders: Folders, token: str) -> None:
    made = {each.name: each.stat() for each in folders.secrets.iterdir()}
    assert {"ca.crt", "server.crt", "server.key", "tokens.toml"} <= set(made)
    assert {made[name].st_mode & 0o777 for name in ("server.key", "tokens.toml")} == {0o600}
    assert token not in (folders.secrets / "tokens.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("file", "label"), [("README.md", "markdown"), ("Makefile", "makefile"), ("LICENSE", "txt")]
)
def test_the_demo_s_network_is_served_over_tls(
    client: Client, variant: Variant, file: str, label: str
) -> None:
    config = json.loads((MAGIKA / "config.json").read_text("utf-8"))
    network = client.network("magika")
    assert network.device == variant.device
    (output,) = network.infer({"bytes": features(REPOSITORY / file, config)}).values()
    assert config["target_labels_space"][output[0].argmax()] == label


def test_every_device_of_the_variant_is_up(client: Client, variant: Variant) -> None:
    devices = {each.name: each for each in client.devices()}
    up = {name for name, each in devices.items() if each.state == "UP"}
    assert {"CPU", "TEMPLATE", "AUTO", "BATCH", "HETERO", "MULTI", variant.device} <= up
    assert all(each.reason for each in devices.values() if each.state != "UP")


@pytest.mark.parametrize("wrong", ["hr_wrong", None])
def test_who_has_no_valid_token_is_refused(
    server: Serving, folders: Folders, wrong: str | None
) -> None:
    stranger = Client(server.grpc, tls_ca=folders.ca, token=wrong)
    with stranger, pytest.raises(errors.Unauthenticated):
        stranger.devices()


def test_plain_text_is_refused(server: Serving, token: str) -> None:
    with Client(server.grpc, token=token) as stranger, pytest.raises(errors.Unavailable) as caught:
        stranger.devices()
    assert "TLS" in str(caught.value)


def test_metrics_need_the_token(server: Serving, folders: Folders, token: str) -> None:
    context = ssl.create_default_context(cafile=folders.ca)
    url = f"https://{server.http}/metrics"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url, timeout=START_SECONDS, context=context)
    caught.value.close()
    assert caught.value.code == 401
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=START_SECONDS, context=context) as reply:
        assert b"headrace_device_streams" in reply.read()


def test_the_health_check_of_compose_passes_in_the_image(
    runner: Runner, server: Serving, folders: Folders
) -> None:
    compose = yaml.safe_load((REPOSITORY / "deploy" / "compose.yaml").read_text("utf-8"))
    kind, check = compose["services"]["headrace"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    asked = check.replace(":9001/", f":{server.http.rpartition(':')[2]}/")
    for line, code in ((asked, 0), (asked.replace("readyz", "no"), 1)):
        command = runner.command(
            ["-c", line], volumes={folders.secrets: "/secrets"}, environment={}, entrypoint="sh"
        )
        ended = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
        assert ended.returncode == code, ended.stderr


def test_sigterm_finishes_what_was_accepted(
    runner: Runner, folders: Folders, token: str, tmp_path: Path
) -> None:
    """The stream is busy until the test cancels its request. Behind it waits an accepted one."""
    held, quick = networks.endless(), networks.add()
    volumes = {folders.secrets: "/secrets"}
    for name in ("state", "cache"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
        volumes[tmp_path / name] = f"/{name}"
    authority = grpc.ssl_channel_credentials(folders.ca.read_bytes())
    with (
        Serving(runner, volumes) as server,
        Client(server.grpc, tls_ca=folders.ca, token=token, timeout=STOP_SECONDS) as client,
        grpc.secure_channel(server.grpc, authority) as channel,
    ):
        client.set_config("TEMPLATE", {"NUM_STREAMS": 1})
        endless = client.load_network(held.model, device="TEMPLATE", name="endless")
        add = client.load_network(quick.model, device="TEMPLATE", name="add")
        running = endless.start_async(held.inputs)
        until(lambda: client.get_metric("TEMPLATE", "NUMBER_OF_EXEC_INFER_REQUESTS") == 1)
        waiting = add.start_async(quick.inputs)
        until(lambda: client.get_metric("TEMPLATE", "NUMBER_OF_WAITING_INFER_REQUESTS") == 1)
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=""), timeout=STOP_SECONDS
        )
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        server.terminate()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        with pytest.raises(errors.Unavailable):
            add.infer(quick.inputs)
        running.cancel()
        (result,) = waiting.result().values()
        x, y = (np.asarray(quick.inputs[name]) for name in ("x", "y"))
        assert np.array_equal(np.asarray(result), x + y)
        assert server.process.wait(STOP_SECONDS) == 0, server.log()
        lines = [json.loads(line) for line in server.log().splitlines()]
    faults = [line for line in lines if line["level"] in ("error", "critical")]
    assert faults == []
    # Where the server may write, it has written: what clients loaded outlives the container.
    assert any((tmp_path / "state").iterdir())
