"""``headrace benchmark``: what it sends and when, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import xml.etree.ElementTree as ET
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from headrace.client import errors
from headrace.client.cli.app import make_app
from headrace.client.cli.benchmark import command as command
from headrace.client.cli.benchmark.inputs import random_inputs
from headrace.client.cli.benchmark.load import ArrivalTimes, BenchmarkRun
from headrace.client.cli.benchmark.plot import plot
from headrace.client.cli.benchmark.results import RequestResult, Results
from headrace.client.errors import InvalidArgument
from headrace.client.info import Port, Ports
from headrace.client.outputs import Outputs
from headrace.v1 import inference_engine_pb2 as pb
from tests.support import client_fake
from tests.support.client_fake import REFUSED, Fake
from tests.support.manual_clock import ManualClock

NO_CHANCE = np.random.default_rng(0)


# -- closed and open loops, on a clock of the test's --


class Server:
    """Answers after some time, and stands still once if told so."""

    def __init__(self, seconds: float) -> None:
        self.clock = ManualClock(100.0)
        self.seconds = seconds
        self.stall: tuple[int, float] = (-1, 0.0)
        self.error: Exception | None = None

    async def ask(self, number: int) -> Outputs:
        """Takes the time of everybody, as a server with one stream does."""
        self.clock.advance(self.seconds)
        if number == self.stall[0]:
            self.clock.advance(self.stall[1])
        if self.error is not None:
            raise self.error
        reply = pb.InferReply()
        reply.timings.queue_seconds, reply.timings.execution_seconds = 0.25, 0.5
        return Outputs(reply, ())

    async def sleep(self, seconds: float) -> None:
        """Lets others do what they do now, before time goes on."""
        end = self.clock.now + seconds
        await asyncio.sleep(0)
        self.clock.now = max(self.clock.now, end)

    def load(self, warm_up: float = 0.0, seconds: float = 10.0) -> BenchmarkRun:
        return BenchmarkRun(self.ask, warm_up, seconds, clock=self.clock, sleep=self.sleep)


def run(load: Coroutine[Any, Any, Results]) -> Results:
    return asyncio.run(load)


def test_a_caller_asks_again_once_it_is_answered() -> None:
    results = run(Server(1.0).load().closed(1))
    assert [answer.start for answer in results.answers] == list(range(10))
    assert {answer.latency for answer in results.answers} == {1.0}
    assert results.throughput == 1.0


def test_the_servers_times_come_along() -> None:
    (first, *_) = run(Server(1.0).load().closed(1)).answers
    assert (first.queue, first.execution) == (0.25, 0.5)


def test_what_starts_during_the_warm_up_does_not_count() -> None:
    results = run(Server(1.0).load(warm_up=3.0).closed(1))
    assert [answer.start for answer in results.answers] == list(range(10))


def test_an_open_loop_asks_at_its_own_times() -> None:
    results = run(Server(0.0).load().open(ArrivalTimes(2.0, poisson=False), NO_CHANCE))
    assert [answer.start for answer in results.answers] == [each / 2 for each in range(20)]


def test_who_comes_while_the_server_stands_still_waits_from_its_own_time_on() -> None:
    server = Server(0.0)
    server.stall = (2, 5.0)
    results = run(server.load().open(ArrivalTimes(1.0, poisson=False), NO_CHANCE))
    latencies = {answer.start: answer.latency for answer in results.answers}
    assert len(latencies) == 10
    assert [latencies[at] for at in (1.0, 2.0, 3.0, 6.0, 8.0)] == [0.0, 5.0, 4.0, 1.0, 0.0]


def test_a_closed_loop_hides_what_an_open_one_shows() -> None:
    server = Server(0.1)
    server.stall = (2, 5.0)
    slow = [each for each in run(server.load().closed(1)).answers if each.latency > 1]
    assert len(slow) == 1


def test_random_times_have_the_rate_on_average_and_no_pattern() -> None:
    times = itertools.takewhile(lambda at: at < 1000, ArrivalTimes(5.0).times(NO_CHANCE))
    distances = np.diff(list(times))
    assert abs(1 / distances.mean() - 5.0) < 0.2
    assert abs(distances.std() / distances.mean() - 1.0) < 0.05


def test_what_fails_is_counted_by_its_status() -> None:
    server = Server(1.0)
    server.error = errors.cancelled()
    results = run(server.load().closed(1))
    assert results.errors == {"CANCELLED": 10}
    assert results.throughput == 0.0
    assert results.spreads() == {}


def test_an_open_loop_keeps_no_more_in_flight_than_memory_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.client.cli.benchmark.load.MOST_IN_FLIGHT", 3)
    server = Server(0.0)

    async def main() -> Results:
        over = asyncio.Event()

        async def ask(_: int) -> Outputs:
            await over.wait()
            raise errors.cancelled()

        async def sleep(seconds: float) -> None:
            await server.sleep(seconds)
            if server.clock.now >= 109.0:
                over.set()

        load = BenchmarkRun(ask, 0.0, 10.0, clock=server.clock, sleep=sleep)
        return await load.open(ArrivalTimes(1.0, poisson=False), NO_CHANCE)

    assert run(main()).errors == {"UNSENT": 7, "CANCELLED": 3}


# -- figures --


def results(*seconds: float) -> Results:
    return Results(10.0, [RequestResult(1.0, 1.0 + each, each / 4, each / 2) for each in seconds])


def test_percentiles_are_of_requests_that_were_really_measured() -> None:
    spread = results(*(each / 100 for each in range(1, 101))).spreads()["latency"]
    assert dict(spread.percentiles) == pytest.approx({50: 0.51, 90: 0.91, 99: 1.0})
    assert (spread.mean, spread.most) == pytest.approx((0.505, 1.0))


def test_latency_is_parted_into_queue_execution_and_the_rest() -> None:
    spreads = results(1.0).spreads()
    parts = [spreads[name].mean for name in ("queue", "execution", "elsewhere")]
    assert parts == pytest.approx([0.25, 0.5, 0.25])


def test_answers_after_the_time_are_no_throughput() -> None:
    assert results(1.0, 8.0, 20.0).throughput == 0.2


def test_throughput_over_time_counts_answers_where_they_come() -> None:
    per_second, ends = Results(
        4.0, [RequestResult(0, 0.5), RequestResult(0, 0.9), RequestResult(0, 3.5)]
    ).over_time(4)
    assert per_second == [2.0, 0.0, 0.0, 1.0]
    assert ends == [1.0, 2.0, 3.0, 4.0]


# -- random inputs --


def inputs(*ports: Port, **shapes: tuple[int, ...]) -> dict[str, Any]:
    return random_inputs(Ports(ports), shapes, {}, NO_CHANCE)


def test_random_values_have_the_inputs_type_and_shape() -> None:
    found = inputs(
        Port("x", "float32", ("N", 3)),
        Port("ids", "int64", (None, 2)),
        Port("text", "string", (2,)),
        Port("half", "bfloat16", (1,)),
        Port("gone", "float32", (1,), optional=True),
    )
    described = {name: (str(value.dtype), value.shape) for name, value in found.items()}
    assert described == {
        "x": ("float32", (1, 3)),
        "ids": ("int64", (1, 2)),
        "text": ("object", (2,)),
        "half": ("bfloat16", (1,)),
    }


def test_open_sizes_have_to_be_given() -> None:
    port = Port("x", "float32", ("N", "S"))
    assert inputs(port, x=(2, 5))["x"].shape == (2, 5)
    with pytest.raises(InvalidArgument, match="pass --shape x=1,2,3"):
        inputs(port)


def test_what_cannot_be_random_has_to_come_from_a_file() -> None:
    with pytest.raises(InvalidArgument, match="pass --input"):
        inputs(Port("x", "float32", (1,), kind="sequence"))
    given = {"x": np.zeros(1)}
    ports = Ports([Port("x", "float32", (1,), kind="sequence")])
    assert random_inputs(ports, {}, given, NO_CHANCE) == given


# -- the picture --


def test_a_png_is_one(tmp_path: Path) -> None:
    plot(results(0.1), "m on CPU, 2 callers", tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("seconds", [(0.1, 0.2, 5.0), ()], ids=["some", "none"])
def test_an_svg_is_one_whatever_there_is_to_show(
    tmp_path: Path, seconds: tuple[float, ...]
) -> None:
    drawn = Results(10.0, [*results(*seconds).answers, RequestResult(1, 2, error="INTERNAL")])
    plot(drawn, "m on CPU, 2 callers", tmp_path / "p.svg")
    root = ET.parse(tmp_path / "p.svg").getroot()
    assert root.tag.endswith("svg")
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 20


# -- the command --


@pytest.fixture
def call(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HEADRACE_SERVER", fake.target)

    def call(*arguments: object) -> Result:
        texts = ["benchmark", *map(str, arguments)]
        return CliRunner().invoke(make_app(texts), texts)

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(b"model")
    return path


QUICK = ("--seconds", 0.1, "--warm-up", 0)


def test_a_model_is_loaded_with_its_hint_measured_and_unloaded(
    call: Any, fake: Fake, model: Path
) -> None:
    result = call(
        model, "--device", "MULTI:CPU", "--hint", "throughput", "--shape", "x=1,4", *QUICK
    )
    assert result.exit_code == 0, result.output
    (load,) = fake.requests("LoadNetwork")
    assert load.device == "MULTI:CPU"
    assert dict(load.config) == {"PERFORMANCE_HINT": "THROUGHPUT"}
    assert [request.name for request in fake.requests("UnloadNetwork")] == [load.name]
    assert len(fake.requests("Infer")) >= 4
    first, second = result.stdout.splitlines()[:2]
    assert first == "tiny on MULTI:CPU (CPU), 4 callers, 0.1 s"
    assert " answers a second, " in second
    for name in ("latency", "queue", "execution", "elsewhere"):
        assert f"\n{name}" in result.stdout
    assert "note: fp16 to fp32" in result.stderr


def test_a_loaded_network_stays_loaded(call: Any, fake: Fake, tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    result = call(
        "--network",
        "echo",
        "--callers",
        2,
        "--shape",
        "x=1,4",
        "--json",
        "--plot",
        picture,
        *QUICK,
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["network"] == "echo"
    assert found["load"] == "2 callers"
    assert found["completed"] == found["requests"] > 0
    assert found["seconds_of"]["queue"]["p99"] == 0.25
    assert found["seconds_of"]["execution"]["mean"] == 0.5
    assert found["plot"] == str(picture)
    assert picture.exists()
    assert not fake.requests("LoadNetwork")
    assert not fake.requests("UnloadNetwork")


def test_a_rate_is_an_open_loop(call: Any) -> None:
    result = call(
        "--network",
        "echo",
        "--rate",
        50,
        "--arrivals",
        "fixed",
        "--shape",
        "x=1,4",
        "--json",
        *QUICK,
    )
    found = json.loads(result.stdout)
    assert found["load"] == "50 requests a second at equal distances"
    assert found["requests"] == 5


def test_failures_are_told_and_no_failure_of_the_benchmark(call: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.full((1, 4), REFUSED, np.float32))
    result = call("--network", "echo", "--rate", 50, "--input", f"x={file}", *QUICK)
    assert result.exit_code == 0, result.output
    assert "requests failed: INVALID_ARGUMENT" in result.stderr
    assert result.stdout.splitlines()[1] == "0 answers a second, 0 in all"


def test_what_is_done_to_an_image_is_told(
    call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (6, 4)).save(tmp_path / "p.png")
    network = pb.NetworkInfo()
    network.CopyFrom(client_fake.ECHO)
    del network.inputs[0].shape[:]
    network.inputs[0].shape.extend(pb.Dimension(size=size) for size in (1, 3, 8, 5))
    monkeypatch.setattr(client_fake, "ECHO", network)
    result = call("--network", "echo", "--input", f"x={tmp_path}/p.png", *QUICK)
    assert result.exit_code == 0, result.output
    assert "p.png is resized from 6x4 to 5x8, its values are 0 to 255" in result.stderr


def test_a_model_is_unloaded_also_where_its_inputs_are_missing(
    call: Any, fake: Fake, model: Path
) -> None:
    result = call(model, *QUICK)
    assert result.exit_code == 1
    assert "pass --shape x=1,2,3" in result.stderr
    assert len(fake.requests("UnloadNetwork")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--network", "echo", "--hint", "latency"], "measures a network as it is loaded"),
        (["--network", "echo", "--rate", "5", "--callers", "2"], "pass one of the two"),
        (["--network", "echo", "--arrivals", "often"], "'often' is unknown; pass poisson or fixed"),
        (["--network", "echo", "--plot", "p.gif"], "does not end in .png or .svg"),
        (["--network", "echo", "--plot", "lost/p.svg"], "cannot write lost/p.svg: its folder is"),
        (["--network", "echo", "--arrivals", "fixed"], "needs --rate"),
        ([], "pass MODEL, --repository NAME or --network NAME"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(
    call: Any, fake: Fake, arguments: list[str], message: str
) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not fake.requests("LoadNetwork")


def test_a_picture_without_matplotlib_says_what_to_install(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    result = call("--network", "echo", "--plot", "p.png")
    assert result.exit_code == 1
    assert "install headrace with its extra 'plot'" in result.stderr
