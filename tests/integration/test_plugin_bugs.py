"""A device with a bug: the caller gets an id, the log explains it, and the server runs on."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import CALL_SECONDS, Server, details_of
from tests.support.hook_plugin import SECRET

_CONFIG = """
devices = "FAILING,EXITING,TEMPLATE"
[plugins.FAILING]
factory = "tests.support.hook_plugin:create_failing"
[plugins.EXITING]
factory = "tests.support.hook_plugin:create_exiting"
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with devices that fail, and a network for one of them in its repository."""
    folder = tmp_path_factory.mktemp("broken")
    config = folder / "headrace.toml"
    config.write_text(_CONFIG, "utf-8")
    kept = folder / "repository" / "kept"
    kept.mkdir(parents=True)
    (kept / "model.onnx").write_bytes(networks.add().model.SerializeToString())
    (kept / "network.toml").write_text('device = "FAILING"', "utf-8")
    with Server("--config", str(config), "--model-repository", str(kept.parent)) as server:
        yield server
        assert server.stop() == 0, server.log()


@pytest.mark.parametrize("device", ["FAILING", "EXITING"])
def test_a_load_that_raises_is_an_internal_error_with_an_id_that_the_log_explains(
    broken: Server, device: str
) -> None:
    case = networks.add()
    with pytest.raises(grpc.RpcError) as caught:
        broken.load(case, device, "broken")
    details = details_of(caught.value)
    assert details.code is grpc.StatusCode.INTERNAL
    assert SECRET not in details.message
    line = next(line for line in broken.log().splitlines() if details.metadata["error_id"] in line)
    assert "LoadNetwork" in line
    assert SECRET in broken.log().partition(line)[2], "the cause comes with the traceback"
    assert "broken" not in broken.networks()
    broken.load(case, "TEMPLATE", "sound")
    assert broken.infer("sound", case.inputs).keys() == case.expected().keys()
    broken.unload("sound")


def test_a_network_of_the_repository_keeps_no_text_of_the_exception(broken: Server) -> None:
    reply = broken.stub.GetNetwork(pb.GetNetworkRequest(name="kept"), timeout=CALL_SECONDS)
    assert reply.info.state == pb.NETWORK_FAILED
    assert "the log has it" in reply.info.reason
    assert SECRET not in reply.info.reason
