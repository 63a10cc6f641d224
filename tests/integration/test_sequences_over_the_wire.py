"""States that the server keeps, as clients see them: every device, both clients, every end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from headrace.client import Client, aio, errors
from headrace.client.cli.app import make_app
from headrace.oip import open_inference_pb2_grpc as oip_grpc
from headrace.testing.case import Case
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    details_of,
    infer_request,
)
from tests.support.client_fake import KINDS, connected, eventually
from tests.support.crashing_device import CRASH
from tests.support.open_inference import infer_request as open_request
from tests.support.open_inference import outputs_of, parameters
from tests.support.stateful import SUM, SUM_STATES

DEVICES = (
    "TEMPLATE",
    "CPU",
    "OPENVINO",
    "OPENCL",
    "HETERO:OPENVINO,CPU",
    "MULTI:CPU,OPENVINO",
    "AUTO:CPU,OPENVINO",
    "BATCH:CPU(4)",
    "MULTI:[BATCH:CPU(4)],OPENVINO",
)
STATES = {"STATES": SUM_STATES}
SILERO = Path(__file__).parents[2] / ".cache/small-zoo/faster_whisper/assets/silero_vad_v6.onnx"
SILERO_OPEN = Path(__file__).parents[2] / ".cache/zoo/silero_vad/data/silero_vad.onnx"
"""Its state has a size that the model does not declare."""
CASE = Case("sum", SUM, {})


def x(value: float, rows: int = 1) -> dict[str, Any]:
    return {"x": np.full((rows, 2), value, np.float32)}


def doubled(outputs: Any) -> float:
    assert list(outputs) == ["doubled"]
    return float(outputs["doubled"][0, 0])


def need(server: Server, device: str) -> None:
    for name in ("TEMPLATE", "CPU", "OPENVINO", "OPENCL", "HETERO", "MULTI", "AUTO", "BATCH"):
        if name in device and name not in server.devices():
            pytest.skip(f"{name} is not up on this server")


@pytest.fixture
def loaded(server: Server) -> Iterator[Server]:
    """The server with a network ``sum`` that keeps its state."""
    server.load(CASE, "CPU" if "CPU" in server.devices() else "TEMPLATE", config=STATES)
    yield server
    server.unload("sum")


@pytest.fixture(params=KINDS)
def network(request: pytest.FixtureRequest, loaded: Server) -> Iterator[Any]:
    with connected(request.param, loaded.address) as client:
        yield client.network("sum")


def open_sequences(server: Server, network: str = "sum") -> float:
    return server.total("headrace_network_sequences_open", network=network)


# -- devices --


@pytest.mark.parametrize(
    ("device", "config"),
    [*((device, {}) for device in DEVICES), ("CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})],
)
def test_every_device_keeps_the_states_of_its_sequences_apart(
    server: Server, device: str, config: dict[str, str]
) -> None:
    need(server, device)
    with Client(server.address) as client:
        network = client.load_network(
            SUM, device=device, name="summed", config={**STATES, **config}
        )
        try:
            with network.session() as one, network.session() as other:
                steps = [(one, 1), (one, 2), (other, 10), (one, 4), (other, 20), (other, 40)]
                answers = [doubled(session.infer(x(value))) for session, value in steps]
            assert answers == [2, 6, 20, 14, 60, 140]
            with network.session() as wide:
                assert doubled(wide.infer(x(1, rows=3))) == 2
                assert wide.infer(x(1, rows=3))["doubled"].tolist() == [[4, 4]] * 3
        finally:
            network.unload()


def test_requests_of_many_sequences_are_joined_to_batches(server: Server) -> None:
    need(server, "BATCH:CPU")
    with Client(server.address) as client:
        network = client.load_network(SUM, device="BATCH:CPU(8)", name="joined", config=STATES)
        sessions = [network.session() for _ in range(16)]
        for step in range(1, 6):
            requests = [each.start_async(x(k)) for k, each in enumerate(sessions)]
            assert [doubled(each.result()) for each in requests] == [
                2 * step * k for k in range(16)
            ]
        for session in sessions:
            session.end()
        assert open_sequences(server, "joined") == 0
        network.unload()


def test_a_crash_of_the_devices_process_keeps_the_states(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text(
        '[plugins.FRAGILE]\nfactory = "tests.support.crashing_device:create_plugin"\n'
        '[plugins.FRAGILE.config]\nISOLATION = "PROCESS"\n'
    )
    options = ("--config", str(config), "--devices", "FRAGILE")
    with Server(*options) as server, Client(server.address) as client:
        network = client.load_network(SUM, device="FRAGILE", name="sum", config=STATES)
        with network.session() as session:
            assert doubled(session.infer(x(5))) == 10
            with pytest.raises(errors.Error):
                session.infer(x(CRASH))
            answers: list[Any] = []

            def answered() -> bool:
                with suppress(errors.Unavailable):  # until the process is there again
                    answers.append(session.infer(x(1), timeout=CALL_SECONDS))
                return bool(answers)

            assert eventually(answered)
            assert doubled(answers[0]) == 12


# -- the clients --


def test_a_session_goes_on_from_request_to_request_and_ends_with_its_block(
    loaded: Server, network: Any
) -> None:
    assert network.info.states == {"total": "next"}
    assert (network.inputs.names, network.outputs.names) == (("x",), ("doubled",))
    session = network.session("mine")
    assert [doubled(session.infer(x(value))) for value in (1, 2, 4)] == [2, 6, 14]
    assert open_sequences(loaded) == 1
    session.end()
    session.end()
    assert open_sequences(loaded) == 0
    with pytest.raises(errors.FailedPrecondition, match="'mine' has ended"):
        session.infer(x(1))


def test_the_last_request_may_end_the_session(loaded: Server, network: Any) -> None:
    session = network.session()
    assert doubled(session.infer(x(1))) == 2
    assert doubled(session.infer(x(1), end=True)) == 4
    assert open_sequences(loaded) == 0
    session.end()


def test_requests_that_are_started_run_in_the_order_in_which_they_were(network: Any) -> None:
    session = network.session()
    requests = [session.start_async(x(value)) for value in range(1, 101)]
    assert doubled(session.infer(x(0))) == 100 * 101  # after all of them
    assert [doubled(each.result()) for each in requests] == [n * (n + 1) for n in range(1, 101)]
    session.end()


def test_a_request_that_fails_leaves_the_session_as_it_was(network: Any) -> None:
    session = network.session()
    assert doubled(session.infer(x(5))) == 10
    with pytest.raises(errors.InvalidArgument, match="has the size 2, but sequence"):
        session.infer(x(1, rows=2))
    with pytest.raises(errors.InvalidArgument, match="no input 'total'"):
        session.infer({**x(1), "total": np.zeros((1, 2), np.float32)})
    assert doubled(session.infer(x(1))) == 12
    session.end()


def test_a_session_that_the_server_has_ended_is_over(loaded: Server, network: Any) -> None:
    session = network.session("over")
    session.infer(x(5))
    loaded.infer("sum", {}, session=pb.Session(id="over", end=True))
    with pytest.raises(errors.FailedPrecondition, match="'over' is not open on network 'sum'"):
        session.infer(x(1))
    with pytest.raises(errors.FailedPrecondition, match="'over' has ended; begin another"):
        session.infer(x(1))
    session.end()


@pytest.mark.parametrize("in_flight", [1, 32])
def test_many_requests_of_a_session_over_one_stream_run_in_their_order(
    loaded: Server, network: Any, in_flight: int
) -> None:
    with_end = network.session()
    found = list(with_end.infer_many((x(k) for k in range(200)), in_flight=in_flight))
    assert [index for index, _ in found] == list(range(200))
    assert [doubled(outputs) for _, outputs in found] == [k * (k + 1) for k in range(200)]
    assert doubled(with_end.infer(x(0))) == 199 * 200
    with_end.end()
    assert open_sequences(loaded) == 0


def test_a_request_of_many_that_the_server_refuses_changes_no_state(network: Any) -> None:
    session = network.session()
    given = [x(1), x(2, rows=3), x(4)]
    first, refused, last = (outputs for _, outputs in session.infer_many(given, in_flight=1))
    assert (doubled(first), doubled(last)) == (2, 10)
    assert isinstance(refused, errors.InvalidArgument)
    session.end()


def test_a_network_with_states_is_used_by_sessions_alone(network: Any) -> None:
    for start in (network.infer, network.start_async):
        with pytest.raises(errors.InvalidArgument, match=r"use network.session\(\)"):
            start(x(1))
    with pytest.raises(errors.InvalidArgument, match="1 to 128 characters"):
        network.session("")


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_without_states_has_no_sessions(server: Server, kind: str) -> None:
    server.load(CASE, "TEMPLATE", "plain")
    try:
        with connected(kind, server.address) as client:
            network = client.network("plain")
            with pytest.raises(errors.InvalidArgument, match="keeps no states"):
                network.session()
        with pytest.raises(grpc.RpcError) as caught:
            server.infer("plain", x(1), session=pb.Session(id="s", start=True))
        assert details_of(caught.value).field == "session"
    finally:
        server.unload("plain")


def test_blocks_end_their_sessions_whatever_happens_in_them(loaded: Server) -> None:
    with Client(loaded.address) as client:
        network = client.network("sum")

        def broken_off() -> None:
            with network.session() as session:
                session.infer(x(1))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            broken_off()
        with network.session():
            pass
        with network.session() as session:
            session.start_async(x(1))
    assert open_sequences(loaded) == 0


def test_an_asynchronous_session_keeps_its_order_whatever_is_cancelled(loaded: Server) -> None:
    async def main() -> list[float]:
        async with aio.Client(loaded.address) as client:
            network = await client.network("sum")
            async with network.session() as session:
                first = session.start_async(x(1))
                never, later = session.start_async(x(10)), session.start_async(x(100))
                never.cancel()  # before its task has begun
                answers = [await first.result(), await later.result(), await session.infer(x(1000))]
                with pytest.raises(errors.Cancelled):
                    await never.result()
            many = [network.session() for _ in range(8)]
            sums = await asyncio.gather(*(each.infer(x(k)) for k, each in enumerate(many)))
            for each in many:
                await each.end()
            return [*map(doubled, answers), *map(doubled, sums)]

    assert asyncio.run(main()) == [2, 202, 2202, *(2 * k for k in range(8))]
    assert open_sequences(loaded) == 0


def test_threads_that_share_a_session_take_turns(loaded: Server) -> None:
    with Client(loaded.address) as client, client.network("sum").session() as session:
        session.infer(x(0))
        started = [session.start_async(x(1)) for _ in range(20)]
        seen: list[float] = []
        for each in started:
            each.add_done_callback(lambda done: seen.append(doubled(done.result())))
        assert doubled(session.infer(x(1))) == 42
        assert eventually(lambda: len(seen) == 20)
        assert seen == [2.0 * k for k in range(1, 21)]


# -- the wire --


def test_requests_of_a_session_on_one_stream_run_in_their_order(loaded: Server) -> None:
    requests = [
        infer_request("sum", x(k), id=f"r{k}", session=pb.Session(id="s", start=k == 1, end=k == 9))
        for k in range(1, 10)
    ]
    replies = loaded.stub.InferStream(
        iter([pb.InferStreamRequest(requests=requests)]), timeout=CALL_SECONDS
    )
    results = [result for reply in replies for result in reply.results]
    assert [result.id for result in results] == [f"r{k}" for k in range(1, 10)]
    sums = [np.frombuffer(each.reply.outputs[0].tensor.data, np.float32)[0] for each in results]
    assert sums == [k * (k + 1) for k in range(1, 10)]
    assert open_sequences(loaded) == 0


def test_the_same_bytes_again_are_the_next_request(loaded: Server) -> None:
    """What is read by the short way for repeated messages would be the same, but for its state."""
    loaded.infer("sum", x(0), session=pb.Session(id="s", start=True))
    again = [loaded.infer("sum", x(1), session=pb.Session(id="s")) for _ in range(5)]
    assert [doubled(each) for each in again] == [2, 4, 6, 8, 10]
    loaded.infer("sum", {}, session=pb.Session(id="s", end=True))


REFUSED: dict[str, tuple[dict[str, Any], pb.Session | None, str, str]] = {
    "no session": (x(1), None, "INVALID_ARGUMENT", "session"),
    "no id": (x(1), pb.Session(start=True), "INVALID_ARGUMENT", "session.id"),
    "a long id": (x(1), pb.Session(id="i" * 129), "INVALID_ARGUMENT", "session.id"),
    "unknown": (x(1), pb.Session(id="unknown"), "FAILED_PRECONDITION", "session.id"),
    "unknown end": ({}, pb.Session(id="unknown", end=True), "FAILED_PRECONDITION", "session.id"),
    "a state": (
        {**x(1), "total": np.zeros((1, 2), np.float32)},
        pb.Session(id="s", start=True),
        "INVALID_ARGUMENT",
        "inputs['total']",
    ),
    "no inputs": ({}, pb.Session(id="s", start=True), "INVALID_ARGUMENT", "inputs['x']"),
}


@pytest.mark.parametrize(("inputs", "session", "code", "field"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_cannot_take_part_is_refused(
    loaded: Server, inputs: dict[str, Any], session: pb.Session | None, code: str, field: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        loaded.infer("sum", inputs, session=session)
    details = details_of(caught.value)
    assert (details.code.name, details.field) == (code, field)
    if "unknown" in (session.id if session else ""):
        assert "'unknown'" in details.message
    assert open_sequences(loaded) == 0


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"STATES": "total=nxt"}, "config['STATES']"),
        ({"STATES": "total"}, "config['STATES']"),
        ({"SEQUENCE_CAPACITY": "5"}, "config['SEQUENCE_CAPACITY']"),
        ({"TEMPLATE.STATES": SUM_STATES}, "config['TEMPLATE.STATES']"),
    ],
)
def test_a_load_with_bad_states_leaves_nothing(
    server: Server, config: dict[str, str], field: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        server.load(CASE, "TEMPLATE", "bad", config)
    assert details_of(caught.value).field == field
    assert "bad" not in server.networks()


# -- the network's life --


def test_sequences_end_with_a_network_that_is_replaced(loaded: Server) -> None:
    with Client(loaded.address) as client:
        session = client.network("sum").session("s")
        session.infer(x(5))
        client.load_network(SUM, device="TEMPLATE", name="sum", config=STATES, replace=True)
        with pytest.raises(errors.FailedPrecondition, match="'s' is not open on network 'sum'"):
            session.infer(x(1))
        assert doubled(client.network("sum").session().infer(x(1), end=True)) == 2


def test_an_exported_network_keeps_states_where_it_is_imported(loaded: Server) -> None:
    with Client(loaded.address) as client:
        copy = client.import_network(client.network("sum").export(), name="copy")
        assert copy.info.states == {"total": "next"}
        with copy.session() as session:
            assert [doubled(session.infer(x(1))) for _ in range(3)] == [2, 4, 6]
        copy.unload()


def test_a_sequence_stays_on_its_version_and_both_protocols_go_on_with_it(tmp_path: Path) -> None:
    for version in "12":
        (tmp_path / "sum" / version).mkdir(parents=True)
        onnx.save(SUM, tmp_path / "sum" / version / "model.onnx")
    (tmp_path / "sum" / "network.toml").write_text(
        'device = "TEMPLATE"\nversion_policy = "all"\n[states]\ntotal = "next"\n'
    )
    with Server(*BASIC, "--model-repository", str(tmp_path)) as server:
        stub = oip_grpc.GRPCInferenceServiceStub(server.channel)  # type: ignore[no-untyped-call]

        def open_inference(value: float, **sequence: Any) -> tuple[str, float]:
            given = parameters({"sequence_id": 7, **sequence})
            request = open_request("sum", x(value), parameters=given)
            response = stub.ModelInfer(request, timeout=CALL_SECONDS)
            return response.model_version, doubled(outputs_of(response))

        assert open_inference(1, sequence_start=True) == ("2", 2)
        server.stub.SetTraffic(pb.SetTrafficRequest(network="sum", shares={"1": 100}))
        assert open_inference(2) == ("2", 6)
        assert doubled(server.infer("sum", x(4), session=pb.Session(id="7"))) == 14
        assert open_inference(8, sequence_end=True) == ("2", 30)
        assert open_inference(1, sequence_start=True) == ("1", 2)


def test_a_restart_makes_the_network_again_and_its_sequences_are_gone(tmp_path: Path) -> None:
    options = (*BASIC, "--state-dir", str(tmp_path))
    with Server(*options) as server:
        server.load(CASE, "TEMPLATE", config=STATES)
        server.infer("sum", x(5), session=pb.Session(id="s", start=True))
        server.kill()
    with Server(*options) as server, Client(server.address) as client:
        network = client.network("sum")
        assert network.info.states == {"total": "next"}
        with pytest.raises(grpc.RpcError) as caught:
            server.infer("sum", x(1), session=pb.Session(id="s"))
        assert "'s' is not open on network 'sum'" in details_of(caught.value).message
        assert doubled(network.session("s").infer(x(1), end=True)) == 2


def test_the_command_line_loads_a_network_with_states(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SERVER", server.address)
    onnx.save(SUM, tmp_path / "sum.onnx")
    words = ["load", str(tmp_path / "sum.onnx"), "--device", "TEMPLATE", "--name", "by_hand"]
    words += ["--config", f"STATES={SUM_STATES}"]
    ended = CliRunner().invoke(make_app(words), words, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    assert "total = next" in ended.output
    try:
        answer = server.infer("by_hand", x(1), session=pb.Session(id="s", start=True, end=True))
        assert list(answer) == ["doubled"]
    finally:
        server.unload("by_hand")


# -- a real network --


@pytest.mark.parametrize("device", ["CPU", "OPENVINO", "HETERO:OPENVINO,CPU"])
def test_speech_is_found_bit_for_bit_as_with_states_carried_by_hand(
    server: Server, device: str
) -> None:
    need(server, device)
    if not SILERO.is_file():
        pytest.skip("silero's network is not here; make test fetches it")
    model = onnx.load(SILERO)
    random = np.random.default_rng(20)
    frames = [random.standard_normal((1, 576)).astype(np.float32) * 0.1 for _ in range(40)]
    by_hand_bytes = session_bytes = 0
    server.load(Case("vad", model, {}), device, "vad")
    expected = []
    states = {name: np.zeros((1, 1, 128), np.float32) for name in "hc"}
    for frame in frames:
        request = infer_request("vad", {"input": frame, **states})
        reply = server.stub.Infer(request, timeout=CALL_SECONDS)
        by_hand_bytes += request.ByteSize() + reply.ByteSize()
        values = {each.name: np.frombuffer(each.tensor.data, np.float32) for each in reply.outputs}
        states = {name: values[f"{name}n"].reshape(1, 1, 128) for name in "hc"}
        expected.append(values["speech_probs"].tobytes())
    server.load(Case("vad", model, {}), device, "listening", {"STATES": "h=hn,c=cn"})
    found = []
    for number, frame in enumerate(frames):
        session = pb.Session(id="0123456789abcdef" * 2, start=not number)
        request = infer_request("listening", {"input": frame}, session=session)
        reply = server.stub.Infer(request, timeout=CALL_SECONDS)
        session_bytes += request.ByteSize() + reply.ByteSize()
        found.append(reply.outputs[0].tensor.data)
    server.unload("vad", "listening")
    assert found == expected
    assert len({*found}) == len(frames)
    print(f"{device}: {session_bytes / 40:.0f} bytes a request, {by_hand_bytes / 40:.0f} by hand")
    assert session_bytes < 0.6 * by_hand_bytes


@pytest.mark.parametrize("sizes", ["2x1x128", "2xNx128"])
@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_sizes_that_the_model_does_not_declare_are_given_with_the_load(
    server: Server, device: str, sizes: str
) -> None:
    need(server, device)
    if not SILERO_OPEN.is_file():
        pytest.skip("silero's network is not here; make zoo fetches it")
    model = onnx.load(SILERO_OPEN)
    random = np.random.default_rng(20)
    frames = [random.standard_normal((1, 576)).astype(np.float32) * 0.1 for _ in range(5)]
    rate = np.array(16000)
    with Client(server.address) as client:
        by_hand = client.load_network(model, device=device, name="vad")
        network = client.load_network(
            model, device=device, name="listening", config={"STATES": f"state=stateN={sizes}"}
        )
        state = np.zeros((2, 1, 128), np.float32)
        with network.session() as session:
            for frame in frames:
                expected = by_hand.infer({"input": frame, "sr": rate, "state": state})
                state = np.asarray(expected["stateN"])
                found = session.infer({"input": frame, "sr": rate})
                assert found["output"].tobytes() == expected["output"].tobytes()
        by_hand.unload()
        network.unload()


def test_a_sequence_begins_with_the_value_that_the_load_gives(server: Server) -> None:
    config = {"STATES": f"{SUM_STATES}=?x?=10"}
    with Client(server.address) as client:
        network = client.load_network(SUM, device="TEMPLATE", name="from_ten", config=config)
        with network.session() as session:
            assert [doubled(session.infer(x(value))) for value in (1, 2)] == [22, 26]
        network.unload()
