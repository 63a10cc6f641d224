"""What is said of the server and its models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.oip import open_inference_pb2 as oip
from headrace.runtime.config.device_name import DeviceName
from headrace.runtime.core import Core
from headrace.runtime.device.state import DeviceState
from headrace.runtime.errors import InvalidArgument, NotFound, Unimplemented
from headrace.runtime.network.network import Network
from headrace.runtime.transform.options import LoadRequest, Presentation
from headrace.server.access.networks import Networks
from headrace.server.services.open_inference.models import Models
from headrace.server.serving.call import NOTHING_MORE, InferCall, InferResult, WantedOutput
from headrace.server.serving.completion_sink import CompletionSink
from headrace.server.serving.serving import Serving
from headrace.server.shared_memory.regions import Regions
from headrace.testing import networks
from headrace.testing.case import parse
from tests.support.moody_device import moody
from tests.support.patience import PATIENCE_SECONDS

SUM = parse("sum (float[n,3] x) => (float[n,3] z) { [copy] z = Identity(x) }")


@pytest.fixture
def core() -> Iterator[Core]:
    running = Core([moody("MOODY"), moody("OTHER")], blob_key=b"key")
    yield running
    running.stop()


def load(core: Core, name: str = "m", device: str = "MOODY", **more: Any) -> None:
    request = LoadRequest(name, DeviceName.parse(device), **more)
    data = SUM.SerializeToString()
    core.load_network(request, lambda: Network.from_bytes(data)).result(PATIENCE_SECONDS)


class Caller:
    """Has no deadline, and is on another machine."""

    def time_remaining(self) -> None:
        return None

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"

    async def user(self) -> None:
        return None


def infer(core: Core, call: InferCall) -> InferResult:
    async def run() -> InferResult:
        sink = CompletionSink(asyncio.get_running_loop())
        regions = Regions(allowed=False, max_bytes=0)
        try:
            return await Serving(Networks(core.networks), sink, regions).run(call, Caller())
        finally:
            regions.close()

    return asyncio.run(run())


def call(rows: int = 1, **fields: Any) -> InferCall:
    inputs: Any = {"x": np.ones((rows, 3), np.float32)}
    return InferCall("m", "", "", inputs, (), NOTHING_MORE, **fields)


def test_the_server_is_ready_as_long_as_nothing_is_against_it(core: Core) -> None:
    reasons: list[str | None] = [None]
    models = Models(core, Networks(core.networks), lambda: reasons[0])
    load(core)
    assert models.ready().ready
    assert models.model_ready("m").ready
    reasons[0] = "shutting down"
    assert models.live().live
    assert not models.ready().ready
    assert not models.model_ready("m").ready


@pytest.mark.parametrize("state", [DeviceState.DOWN, DeviceState.RESTARTING])
def test_a_model_is_ready_while_its_device_works(core: Core, state: DeviceState) -> None:
    models = Models(core, Networks(core.networks), lambda: None)
    load(core)
    load(core, "n", "OTHER")
    core.states.set("MOODY", state, "gone")
    assert not models.model_ready("m").ready
    assert models.model_ready("n").ready
    core.states.set("MOODY", DeviceState.UP)
    assert models.model_ready("m").ready


def test_classes_are_told_of_a_model_that_is_unloaded_meanwhile(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = core.networks.submit

    def unloading(entry: Any, job: Any) -> None:
        submit(entry, job)
        core.unload_network("m").result(PATIENCE_SECONDS)

    monkeypatch.setattr(core.networks, "submit", unloading)
    load(core)
    inputs: Any = {"x": np.ones((1, 3), np.float32)}
    asked = InferCall("m", "", "", inputs, (), {"z": WantedOutput(classification=1)})
    assert np.asarray(infer(core, asked).outputs["z"]).tolist() == ["1.000000:0"]


def test_a_model_that_is_not_there_is_not_ready(core: Core) -> None:
    load(core)
    models = Models(core, Networks(core.networks), lambda: None)
    assert not models.model_ready("nobody").ready
    assert not models.model_ready("m", "2").ready
    assert models.model_ready("m", "1").ready


def test_shared_memory_is_listed_where_it_is_allowed(core: Core) -> None:
    for allowed in (False, True):
        models = Models(core, Networks(core.networks), lambda: None, shared_memory=allowed)
        extensions = models.server_metadata().extensions
        assert ("system_shared_memory" in extensions) is allowed
        assert "statistics" in extensions
        assert "cuda_shared_memory" not in extensions


def test_requests_without_a_priority_have_that_of_the_model(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, seen = core.networks.submit, list[int]()

    def noted(entry: Any, job: Any) -> None:
        seen.append(job.priority)
        submit(entry, job)

    monkeypatch.setattr(core.networks, "submit", noted)
    load(core, presentation=Presentation(priority=9))
    infer(core, call())
    infer(core, call(priority=-3))
    assert seen == [9, -3]


def test_metadata_has_every_dimension_and_a_configuration_leaves_the_batch_out(core: Core) -> None:
    models = Models(core, Networks(core.networks), lambda: None)
    load(core, presentation=Presentation(max_batch_size=4))
    (tensor,) = models.model_metadata("m").inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("x", "FP32", [-1, 3])
    config = models.model_config("m").config
    assert (config.name, config.max_batch_size) == ("m", 4)
    assert list(config.input[0].dims) == [3]
    assert config.input[0].data_type == oip.TYPE_FP32
    assert config.parameters["DEVICE"].string_value == "MOODY"
    assert not config.model_transaction_policy.decoupled


def test_a_model_without_a_batch_shows_whole_shapes(core: Core) -> None:
    load(core)
    config = Models(core, Networks(core.networks), lambda: None).model_config("m").config
    assert config.max_batch_size == 0
    assert list(config.output[0].dims) == [-1, 3]


def test_statistics_count_each_version_by_itself(core: Core) -> None:
    models = Models(core, Networks(core.networks), lambda: None)
    load(core, presentation=Presentation(max_batch_size=4))
    load(core, "n", "OTHER")
    infer(core, call(2))
    infer(core, call(3))
    with pytest.raises(InvalidArgument):
        infer(core, InferCall("m", "", "", {}, (), NOTHING_MORE))  # refused before it is a request
    stats = {each.name: each for each in models.statistics().model_stats}
    assert set(stats) == {"m", "n"}
    assert (stats["n"].inference_count, stats["n"].last_inference) == (0, 0)
    mine = stats["m"]
    assert (mine.version, mine.inference_count, mine.execution_count) == ("1", 5, 2)
    assert mine.inference_stats.success.count == 2
    assert mine.inference_stats.fail.count == 0
    parts = mine.inference_stats
    whole = sum(
        each.ns
        for each in (parts.queue, parts.compute_input, parts.compute_infer, parts.compute_output)
    )
    assert abs(whole - parts.success.ns) <= 4
    assert [(each.batch_size, each.compute_infer.count) for each in mine.batch_stats] == [
        (2, 1),
        (3, 1),
    ]
    assert models.statistics("m", "1").model_stats == [mine]
    with pytest.raises(NotFound):
        models.statistics("m", "2")


def test_a_request_is_one_inference_whatever_its_shape_if_the_model_has_no_batch(
    core: Core,
) -> None:
    load(core)
    infer(core, call(3))
    infer(core, call(200))
    (stats,) = Models(core, Networks(core.networks), lambda: None).statistics("m").model_stats
    assert (stats.inference_count, stats.execution_count) == (2, 2)
    assert [(each.batch_size, each.compute_infer.count) for each in stats.batch_stats] == [(1, 2)]


def test_what_failed_is_counted_as_failed(core: Core) -> None:
    load(core)
    plugin: Any = core.plugins.plugin("MOODY")
    plugin.breaks(InvalidArgument("no"))
    with pytest.raises(InvalidArgument):
        infer(core, call())
    (stats,) = Models(core, Networks(core.networks), lambda: None).statistics("m").model_stats
    assert stats.inference_stats.fail.count == 1
    assert stats.response_stats["0"].fail.count == 1
    assert (stats.inference_stats.success.count, stats.inference_count) == (0, 0)


def test_more_rows_than_the_model_takes_are_refused(core: Core) -> None:
    load(core, presentation=Presentation(max_batch_size=4))
    assert infer(core, call(4)).outputs
    with pytest.raises(InvalidArgument, match="has 5 rows; the model's max_batch_size is 4"):
        infer(core, call(5))


def test_classes_are_the_highest_values_with_their_labels(core: Core) -> None:
    labels = {"": ("cat", "dog"), "other": ("x",)}
    load(core, presentation=Presentation(labels=labels))
    values = np.array([[0.25, 3.0, 2.0]], np.float32)
    wanted = {"z": WantedOutput(classification=2)}
    asked = InferCall("m", "", "", {"x": values}, ("z",), wanted)
    classes = infer(core, asked).outputs["z"]
    assert np.asarray(classes).tolist() == ["3.000000:1:dog", "2.000000:2"]


def test_each_row_of_a_batch_has_classes_of_its_own(core: Core) -> None:
    load(core, presentation=Presentation(max_batch_size=2))
    values = np.array([[0, 1, 2], [2, 1, np.nan]], np.float32)
    wanted = {"z": WantedOutput(classification=9)}
    asked = InferCall("m", "", "", {"x": values}, ("z",), wanted)
    classes = infer(core, asked).outputs["z"]
    assert np.asarray(classes).tolist() == [
        ["2.000000:2", "1.000000:1", "0.000000:0"],
        ["2.000000:0", "1.000000:1", "nan:2"],
    ]


def test_a_model_that_the_protocol_has_no_words_for_says_so(core: Core) -> None:
    data = networks.typed(np.complex64, "complex64").model.SerializeToString()
    request = LoadRequest("c", DeviceName.parse("MOODY"))
    core.load_network(request, lambda: Network.from_bytes(data)).result(PATIENCE_SECONDS)
    models = Models(core, Networks(core.networks), lambda: None)
    for ask in (models.model_metadata, models.model_config):
        with pytest.raises(Unimplemented, match="input 'x' has type complex64"):
            ask("c")
