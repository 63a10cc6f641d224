"""How a server ends by request, and what becomes of those that use it."""

from __future__ import annotations

import subprocess
import threading
import urllib.error
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.testing import networks
from headrace.v1 import inference_engine_pb2 as pb
from headrace.v1 import inference_engine_pb2_grpc as rpc
from headrace.wire.codec import decode_values
from tests.integration.harness import (
    BASIC,
    CALL_SECONDS,
    Server,
    Stream,
    command_line,
    details_of,
    infer_request,
    is_running,
    outcome_of,
    refused_start,
    until,
)
from tests.support.gated_device import WAITS
from tests.support.ports import held_port


def drained(server: Server) -> None:
    """Sends SIGTERM and returns once the server says that it takes no more work."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=CALL_SECONDS)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    server.terminate()
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()


def test_sigterm_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    """The stream is busy until its deadline ends it; behind it wait requests that are accepted."""
    held, quick = networks.endless(), networks.add()
    with Server(*BASIC, "--grace-seconds", "60") as server:
        config = pb.SetConfigRequest(
            target=pb.Target(device="TEMPLATE"), config={"NUM_STREAMS": "1", "QUEUE_CAPACITY": "20"}
        )
        server.stub.SetConfig(config, timeout=CALL_SECONDS)
        server.load(held, "TEMPLATE")
        server.load(quick, "TEMPLATE")
        stream = Stream(server.stub)
        stream.send(infer_request("endless", held.inputs, id="held"))
        for number in range(21):  # the last is refused, which says that the others are in
            stream.send(infer_request("add", quick.inputs, id=f"r{number}"))
        refused = stream.next()
        assert (refused.id, outcome_of(refused)) == ("r20", "RESOURCE_EXHAUSTED")
        drained(server)
        stream.send(infer_request("add", quick.inputs, id="new"))
        new = stream.next()
        assert (new.id, outcome_of(new)) == ("new", "UNAVAILABLE")
        with pytest.raises(grpc.RpcError) as caught:
            server.infer("add", quick.inputs)
        details = details_of(caught.value)
        assert (details.code, details.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
        assert "shutting down" in details.message
        stream.send(cancel=["held"])
        results = {(each := stream.next()).id: outcome_of(each) for _ in range(21)}
        with pytest.raises(grpc.RpcError) as ended:
            stream.next()
        assert details_of(ended.value).code is grpc.StatusCode.UNAVAILABLE
        assert results == {"held": "CANCELLED", **{f"r{number}": "OK" for number in range(20)}}
        assert server.process.wait(CALL_SECONDS) == 0, server.log()
        assert "Traceback" not in server.log(), server.log()


def test_an_idle_server_stops_with_exit_code_0() -> None:
    with Server(*BASIC) as server:
        assert server.stop() == 0, server.log()


def test_sigterm_ends_a_server_that_is_still_loading_its_networks(tmp_path: Path) -> None:
    settings = tmp_path / "headrace.toml"
    settings.write_text("""
        [plugins.GATED]
        factory = "tests.support.gated_device:create_plugin"
        config = { HOLD = "YES" }
    """)
    for name in ("running", "second", "waiting"):  # more than there are threads that load
        folder = tmp_path / "repository" / name
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(networks.add().model.SerializeToString())
        (folder / "network.toml").write_text('device = "GATED"')
    port = held_port()
    address = f"127.0.0.1:{port}"
    options = ["--config", str(settings), "--devices", "GATED", "--port", str(port)]
    command = command_line([*options, "--model-repository", str(tmp_path / "repository")])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            with grpc.insecure_channel(address) as channel:
                stub = rpc.InferenceEngineStub(channel)  # type: ignore[no-untyped-call]
                list_networks = partial(stub.ListNetworks, pb.ListNetworksRequest())
                waiting = {"wait_for_ready": True, "timeout": CALL_SECONDS}
                until(lambda: len(list_networks(**waiting).networks) == 3)
                assert {each.state for each in list_networks().networks} == {pb.LOADING}
            server.terminate()
            said, logged = server.communicate(timeout=CALL_SECONDS)
        finally:
            server.kill()
    assert (server.returncode, said) == (0, b""), logged.decode()
    assert b"stopped" in logged
    assert b"error" not in logged, logged.decode()


def test_a_load_that_cannot_be_stopped_keeps_no_server_from_stopping(tmp_path: Path) -> None:
    """A large network takes seconds between two looks at whether its load was cancelled."""
    settings = tmp_path / "headrace.toml"
    settings.write_text("""
        [plugins.GATED]
        factory = "tests.support.gated_device:create_plugin"
        config = { HOLD = "YES", DEAF = "YES" }
    """)
    options = ["--config", str(settings), "--devices", "GATED", "--grace-seconds", "0.2"]
    with Server(*options) as server:
        model = pb.ModelSource(data=networks.add().model.SerializeToString())
        request = pb.LoadNetworkRequest(name="deaf", device="GATED", model=model)
        load = server.stub.LoadNetwork.future(request)
        until(lambda: WAITS in server.log(), "the load was to be in the middle of a call")
        assert server.stop() == 0, server.log()
        assert load.code() is grpc.StatusCode.UNAVAILABLE
        assert "still being loaded" in server.log()
        assert "Traceback" not in server.log(), server.log()


def test_an_interrupt_of_a_server_that_turns_out_unable_to_listen_leaves_no_traceback(
    tmp_path: Path,
) -> None:
    port = held_port()
    settings = tmp_path / "headrace.toml"
    settings.write_text(f"""
        [plugins.INTERRUPTED]
        factory = "tests.support.interrupted_device:create_plugin"
        config = {{ PORT = {port} }}
    """)
    options = ["--config", str(settings), "--devices", "INTERRUPTED", "--port", str(port)]
    code, said = refused_start(*options)
    assert code == 130
    assert "it was interrupted" in said
    assert "Traceback" not in said
    assert "never retrieved" not in said


def test_who_only_watches_keeps_no_server_from_stopping() -> None:
    """Open watches of its health, and of what it is, outlast the work and not the server."""
    with Server(*BASIC, "--grace-seconds", str(100 * CALL_SECONDS)) as server:
        health = health_pb2_grpc.HealthStub(server.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="nobody"))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        asked = threading.Event()
        question = reflection_pb2.ServerReflectionRequest(list_services="")

        def questions() -> Iterator[reflection_pb2.ServerReflectionRequest]:
            yield question
            asked.wait(CALL_SECONDS)

        reflection = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        answers = reflection.ServerReflectionInfo(questions())
        assert next(answers).list_services_response.service
        assert server.stop() == 0, server.log()
        with pytest.raises(grpc.RpcError) as ended:
            next(watch)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert list(answers) == []
        asked.set()
        assert "Traceback" not in server.log(), server.log()


@pytest.mark.parametrize("half_closed", [False, True])
def test_a_stream_whose_caller_leaves_during_the_drain_holds_nothing_up(half_closed: bool) -> None:
    case = networks.endless()
    with Server(*BASIC, "--grace-seconds", str(100 * CALL_SECONDS)) as server:
        server.load(case, "TEMPLATE")
        stream = Stream(server.stub)
        stream.send(infer_request("endless", case.inputs, id="waits"))
        if half_closed:
            stream.done()
        until(lambda: is_running(server, "TEMPLATE"))
        drained(server)
        stream.call.cancel()
        assert server.process.wait(CALL_SECONDS) == 0, server.log()


def test_calls_that_wait_at_sigterm_are_answered_and_new_ones_sent_elsewhere() -> None:
    """The stream is busy until its caller gives up; behind it wait calls that were accepted."""
    held, quick = networks.endless(), networks.add()
    with Server(*BASIC, "--grace-seconds", "60") as server:
        config = pb.SetConfigRequest(
            target=pb.Target(device="TEMPLATE"), config={"NUM_STREAMS": "1"}
        )
        server.stub.SetConfig(config, timeout=CALL_SECONDS)
        server.load(held, "TEMPLATE")
        server.load(quick, "TEMPLATE")
        busy = server.start("endless", held.inputs)
        until(partial(is_running, server, "TEMPLATE"))
        calls = [server.start("add", quick.inputs) for _ in range(20)]
        until(lambda: server.metric("NUMBER_OF_WAITING_INFER_REQUESTS", "TEMPLATE") == 20)
        drained(server)
        with pytest.raises(urllib.error.HTTPError) as unready:
            server.get("/readyz")
        with unready.value:
            assert unready.value.code == 503
        assert server.get("/healthz")
        refused = [
            server.start("add", quick.inputs),
            server.stub.ListNetworks.future(pb.ListNetworksRequest()),
            server.stub.LoadNetwork.future(pb.LoadNetworkRequest(name="late", device="TEMPLATE")),
        ]
        for call in refused:
            details = details_of(call.exception())
            assert details.code is grpc.StatusCode.UNAVAILABLE
            assert "shutting down" in details.message
        assert not any(call.done() for call in calls)
        busy.cancel()
        for call in calls:
            outputs = decode_values(call.result().outputs, call.result().attachments, "outputs")
            np.testing.assert_array_equal(outputs["z"], quick.expected()["z"])
        assert server.process.wait(CALL_SECONDS) == 0, server.log()
        assert "Traceback" not in server.log(), server.log()


@pytest.mark.parametrize("grace_seconds", [0.2, 100 * CALL_SECONDS])
def test_what_outlives_the_grace_period_is_cancelled_and_its_callers_are_told(
    grace_seconds: float,
) -> None:
    """The period ends by itself, or by a second signal."""
    case = networks.endless()
    with Server(*BASIC, "--grace-seconds", str(grace_seconds)) as server:
        server.load(case, "TEMPLATE")
        call = server.start("endless", case.inputs)
        stream = Stream(server.stub)
        stream.send(infer_request("endless", case.inputs, id="r"))
        stream.send(infer_request("no", case.inputs, id="marker"))
        assert stream.next().id == "marker"
        if grace_seconds > CALL_SECONDS:
            drained(server)
        assert server.stop() == 0, server.log()
        assert call.code() is grpc.StatusCode.UNAVAILABLE
        told = stream.next()
        assert (told.id, outcome_of(told)) == ("r", "UNAVAILABLE")
        assert "grace period" in told.error.message
        with pytest.raises(grpc.RpcError) as ended:
            stream.next()
        assert details_of(ended.value).code is grpc.StatusCode.UNAVAILABLE
        assert "cancelled" in server.log()
        assert "Traceback" not in server.log(), server.log()


@pytest.mark.native_front_end("gRPC cancels calls at a stop that it has not handed over yet")
def test_callers_without_a_pause_see_nothing_but_replies_and_unavailable() -> None:
    """They go on calling until the server is gone. gRPC's core answers calls that come while it is
    being stopped with CANCELLED, which nobody asked for and no client repeats."""
    case = networks.add()
    with Server(*BASIC) as server, ExitStack() as stack:
        server.load(case, "CPU")
        request = infer_request("add", case.inputs)
        gone = threading.Event()
        seen: Counter[str] = Counter()
        replied = threading.Semaphore(0)

        def call_again_and_again(stub: rpc.InferenceEngineStub) -> None:
            while not gone.is_set():
                call = stub.Infer.future(request, timeout=CALL_SECONDS)
                seen[call.code().name] += 1
                replied.release()

        channels = [stack.enter_context(closing(server.connect())) for _ in range(8)]
        callers = [
            threading.Thread(
                target=call_again_and_again,
                args=(rpc.InferenceEngineStub(channel),),  # type: ignore[no-untyped-call]
            )
            for channel in channels
            for _ in range(2)
        ]
        for caller in callers:
            caller.start()
        for _ in range(100):
            assert replied.acquire(timeout=CALL_SECONDS)
        assert server.stop() == 0, server.log()
        until(lambda: "UNAVAILABLE" in seen, "a caller was to find the server gone")
        gone.set()
        for caller in callers:
            caller.join(CALL_SECONDS)
        assert seen.keys() == {"OK", "UNAVAILABLE"}, seen
        assert "Traceback" not in server.log(), server.log()
        assert "accept" not in server.log(), server.log()
