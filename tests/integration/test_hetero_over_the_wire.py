"""Networks split over devices, through the wire: right results, clear errors, no request lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from headrace.plugins.hetero.planning.cut import is_constant
from headrace.testing import networks
from headrace.testing.case import Case, network_of, parse
from headrace.testing.compare import assert_same_outputs
from headrace.v1 import inference_engine_pb2 as pb
from tests.integration.harness import (
    CALL_SECONDS,
    Server,
    Stream,
    assert_settled,
    details_of,
    infer_request,
    outcome_of,
    until,
)
from tests.support.faulty_device import FAULTS
from tests.support.gated_device import WAITS
from tests.support.patience import DEADLINES

MAGIKA = Path(__file__).parents[2] / ".cache/magika/model.onnx"
FACTORY = 'factory = "tests.support.faulty_device:create_plugin"'
CONFIG = f"""
[plugins.CPU2]
device = "CPU"

[plugins.A]
{FACTORY}

[plugins.B]
{FACTORY}

[plugins.C]
{FACTORY}

[plugins.GATED]
factory = "tests.support.gated_device:create_plugin"
"""
DEVICES = "HETERO:CPU,TEMPLATE"
FAULTY = ("A", "B", "C")
REQUESTS = 300


@pytest.fixture(scope="module")
def hetero(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a second CPU, three devices that fail when they are told to, and one whose
    loads wait."""
    file = tmp_path_factory.mktemp("settings") / "headrace.toml"
    file.write_text(CONFIG, "utf-8")
    devices = "CPU,CPU2,TEMPLATE,HETERO,A,B,C,GATED"
    with Server("--config", str(file), "--devices", devices) as running:
        yield running
        assert_settled(running)
        assert running.stop() == 0, running.log()


def load(
    server: Server,
    case: Case,
    device: str,
    affinities: Mapping[str, str] | None = None,
    **fields: Any,
) -> pb.NetworkInfo:
    request = pb.LoadNetworkRequest(
        name=case.name,
        model=pb.ModelSource(data=case.model.SerializeToString()),
        device=device,
        affinities=affinities or {},
        **fields,
    )
    info: pb.NetworkInfo = server.stub.LoadNetwork(request, timeout=CALL_SECONDS)
    return info


def query(
    server: Server, case: Case, device: str, affinities: Mapping[str, str] | None = None
) -> pb.QueryNetworkReply:
    request = pb.QueryNetworkRequest(
        model=pb.ModelSource(data=case.model.SerializeToString()),
        device=device,
        affinities=affinities or {},
    )
    reply: pb.QueryNetworkReply = server.stub.QueryNetwork(request, timeout=CALL_SECONDS)
    return reply


def metric(server: Server, network: str, name: str) -> Any:
    request = pb.GetMetricRequest(target=pb.Target(network=network), name=name)
    value = server.stub.GetMetric(request, timeout=CALL_SECONDS).value
    return getattr(value, value.WhichOneof("value"))


def set_config(server: Server, device: str, **config: str) -> None:
    request = pb.SetConfigRequest(target=pb.Target(device=device), config=config)
    server.stub.SetConfig(request, timeout=CALL_SECONDS)


def set_fault(server: Server, device: str, fault: str) -> None:
    set_config(server, device, FAULT=fault)


def layers(case: Case) -> list[str]:
    """The layers that can have an affinity."""
    nodes: Iterator[ir.Node] = iter(case.network.model.graph)
    return [node.name or "" for node in nodes if not is_constant(node)]


def at_random(case: Case, seed: int, *devices: str) -> dict[str, str]:
    """An affinity for each layer."""
    dice = random.Random(seed)
    return {name: dice.choice(devices) for name in layers(case)}


def magika() -> Case:
    if not MAGIKA.is_file():
        pytest.skip("make fetches the model")
    data = np.random.default_rng(0).integers(0, 256, (1, 2048)).astype(np.int32)
    model = onnx.load(MAGIKA)
    (x,) = network_of(model).inputs
    return Case("magika", model, {x.name: data})


REAL = {"magika": magika, "image": networks.image, "transformer": networks.transformer}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", REAL)
def test_a_network_split_at_random_computes_what_the_whole_does(
    hetero: Server, name: str, seed: int
) -> None:
    case = REAL[name]()
    load(hetero, case, "CPU")
    whole = hetero.infer(case.name, case.inputs)
    affinities = at_random(case, seed, "CPU", "TEMPLATE")
    load(hetero, case, DEVICES, affinities, replace=True)
    assert metric(hetero, case.name, "HETERO_NUMBER_OF_SUBGRAPHS") > 2
    assert_same_outputs(hetero.infer(case.name, case.inputs), whole, 1e-5)
    hetero.unload(case.name)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "case",
    [
        *networks.control_flow(),
        networks.sequence(),
        networks.optional(),
        networks.optional(present=False),
        networks.local_function(),
        networks.string_join(),
        networks.recurrent(),
        networks.mlp(),
    ],
    ids=str,
)
def test_every_kind_of_value_and_layer_survives_a_split(
    hetero: Server, case: Case, seed: int
) -> None:
    load(hetero, case, DEVICES, at_random(case, seed, "CPU", "TEMPLATE"))
    assert_same_outputs(hetero.infer(case.name, case.inputs), case.expected(), 1e-5)
    hetero.unload(case.name)


def test_sequences_strings_and_absent_values_cross_a_cut(hetero: Server) -> None:
    text = """crossing (float[N] x, string[N] s) => (float[M] y, string[N] t) {
        [two] pair = SequenceConstruct(x, x)
        [more] three = SequenceInsert(pair, x)
        [join] y = ConcatFromSequence<axis = 0>(three)
        [once] u = StringConcat(s, s)
        [twice] t = StringConcat(u, s)
    }"""
    inputs = {"x": networks.random(3), "s": networks.strings("a", "ü", "")}
    case = Case("crossing", parse(text), inputs)
    affinities = {"two": "CPU", "more": "TEMPLATE", "join": "CPU", "once": "CPU"}
    load(hetero, case, DEVICES, {**affinities, "twice": "TEMPLATE"})
    assert_same_outputs(hetero.infer(case.name, case.inputs), case.expected(), 1e-5)
    hetero.unload(case.name)


def test_sizes_may_change_from_request_to_request(hetero: Server) -> None:
    case = networks.transformer()
    load(hetero, case, DEVICES, at_random(case, 3, "CPU", "TEMPLATE"))
    for batch, length in ((1, 3), (3, 1), (2, 9)):
        inputs = {"x": networks.random(batch, length, 16)}
        assert_same_outputs(hetero.infer(case.name, inputs), case.expected(inputs), 1e-5)
    hetero.unload(case.name)


def test_a_load_goes_by_the_answer_to_the_query(hetero: Server) -> None:
    case = networks.transformer()
    affinities = {"up": "CPU2", "sigmoid": "CPU2"}
    answer = query(hetero, case, "HETERO:CPU,CPU2", affinities)
    assert [each.device for each in answer.subgraphs] == ["CPU", "CPU2", "CPU"]
    assert list(answer.subgraphs[1].layers) == ["up", "sigmoid"]
    assert answer.supported_layers["up"] == "CPU2"
    info = load(hetero, case, "HETERO:CPU,CPU2", affinities)
    assert list(info.execution_devices) == ["CPU.0", "CPU2.0"]
    assert metric(hetero, case.name, "HETERO_NUMBER_OF_SUBGRAPHS") == 3
    assert metric(hetero, case.name, "TARGET_FALLBACK") == "CPU,CPU2"
    assert list(metric(hetero, case.name, "EXECUTION_DEVICES").values) == ["CPU.0", "CPU2.0"]
    hetero.unload(case.name)


def test_what_no_device_runs_is_listed_alike_by_query_and_load(hetero: Server) -> None:
    case = networks.unknown_operators()
    answer = query(hetero, case, DEVICES)
    assert [each.layer for each in answer.unsupported] == ["strange", "stranger"]
    for layer in answer.unsupported:
        assert "CPU: " in layer.reason
        assert "TEMPLATE: " in layer.reason
    with pytest.raises(grpc.RpcError) as caught:
        load(hetero, case, DEVICES)
    details = details_of(caught.value)
    assert details.code is grpc.StatusCode.FAILED_PRECONDITION
    assert all(f"{each.layer} ({each.op_type})" in details.message for each in answer.unsupported)


def test_performance_counts_name_subgraph_and_device(hetero: Server) -> None:
    case = networks.relu_relu()
    load(hetero, case, "HETERO:CPU,CPU2", {"outer": "CPU2"})
    request = infer_request(case.name, case.inputs, performance_counts=True)
    reply = hetero.stub.Infer(request, timeout=CALL_SECONDS)
    where = {
        origin: (each.subgraph, each.device)
        for each in reply.performance_counts
        for origin in each.original_layers
    }
    assert where == {"sum": (1, "CPU.0"), "inner": (1, "CPU.0"), "outer": (2, "CPU2.0")}
    hetero.unload(case.name)


def test_subgraphs_are_counted_and_their_series_go_with_the_network(hetero: Server) -> None:
    case = networks.relu_relu()
    load(hetero, case, "HETERO:CPU,CPU2", {"outer": "CPU2"})
    for _ in range(3):
        hetero.infer(case.name, case.inputs)
    of = {"network": case.name, "subgraph": "2", "device": "CPU2"}
    assert hetero.total("headrace_subgraph_execution_seconds_count", **of) == 3
    assert hetero.total("headrace_subgraph_cut_bytes_total", **of) == 3 * 4 * 4
    assert hetero.total("headrace_device_requests_total", device="CPU2.0", kind="part") >= 3
    hetero.unload(case.name)
    assert not hetero.total("headrace_subgraph_execution_seconds_count", network=case.name)


@pytest.mark.parametrize("place", range(2))
def test_what_a_device_refuses_in_the_middle_of_a_request_the_next_one_serves(
    hetero: Server, place: int
) -> None:
    case = networks.relu_relu()
    affinities = dict(zip(("sum", "inner", "outer"), FAULTY, strict=True))
    load(hetero, case, "HETERO:A,B,C", affinities)
    set_fault(hetero, FAULTY[place], "refusal")
    found = hetero.infer(case.name, case.inputs)
    set_fault(hetero, FAULTY[place], "")
    assert_same_outputs(found, case.expected(), 1e-5)
    assert_settled(hetero)
    hetero.unload(case.name)


@pytest.mark.parametrize(
    ("place", "fault"),
    [(place, fault) for fault in FAULTS for place in range(3) if fault != "refusal" or place == 2],
)
def test_each_device_may_fail_in_the_middle_of_a_request(
    hetero: Server, place: int, fault: str
) -> None:
    """The error says where, the server is up, and the next request is right."""
    case = networks.relu_relu()
    affinities = dict(zip(("sum", "inner", "outer"), FAULTY, strict=True))
    load(hetero, case, "HETERO:A,B,C", affinities)
    device = FAULTY[place]
    set_fault(hetero, device, fault)
    with pytest.raises(grpc.RpcError) as caught:
        hetero.infer(case.name, case.inputs)
    set_fault(hetero, device, "")
    details = details_of(caught.value)
    assert f"subgraph {place + 1} of 3 on {device}" in details.message
    assert details.metadata["device"] == device
    codes = {"refusal": "INVALID_ARGUMENT", "down": "UNAVAILABLE"}
    assert details.code.name == codes.get(fault, "INTERNAL")
    assert_same_outputs(hetero.infer(case.name, case.inputs), case.expected(), 1e-5)
    assert_settled(hetero)
    hetero.unload(case.name)


def unending() -> Case:
    """A layer, then a Loop that never ends, then another layer."""
    text = """unending (float[2] x) => (float[2] y) {
        [before] a = Abs(x)
        yes = Constant<value = bool {1}>()
        none = Constant<value = int64 {9223372036854775807}>()
        [forever] b = Loop(none, yes, a) <body = body
            (int64 i, bool go, float[2] v) => (bool more, float[2] next) {
                [same] more = Identity(go)
                [flip] next = Neg(v)
            }
        >
        [after] y = Neg(b)
    }"""
    return Case("unending", parse(text), {"x": networks.random(2)})


SPLIT_UNENDING = {"before": "CPU", "forever": "TEMPLATE", "after": "CPU"}


def test_a_deadline_ends_the_subgraph_that_runs_and_names_it(hetero: Server) -> None:
    case = unending()
    load(hetero, case, DEVICES, SPLIT_UNENDING)
    stream = Stream(hetero.stub)
    for seconds in DEADLINES:  # until the second subgraph is reached in time
        stream.send(infer_request(case.name, case.inputs, id="late", timeout_seconds=seconds))
        details = details_of(stream.next().error)
        assert details.code is grpc.StatusCode.DEADLINE_EXCEEDED
        if "subgraph 2 of 3" in details.message:
            break
    assert "subgraph 2 of 3 on TEMPLATE" in details.message
    stream.done()
    assert_settled(hetero)
    hetero.unload(case.name)


def test_a_cancel_ends_the_subgraph_that_runs_and_no_other_request(hetero: Server) -> None:
    case, other = unending(), networks.mlp()
    load(hetero, case, DEVICES, SPLIT_UNENDING)
    load(hetero, other, DEVICES, {"dense1": "CPU", "relu1": "CPU", "dense2": "CPU"})
    busy = {"device": "TEMPLATE.0"}
    stream = Stream(hetero.stub)
    stream.send(infer_request(case.name, case.inputs, id="endless"))
    until(lambda: hetero.total("headrace_device_streams_busy", **busy) == 1)
    stream.send(cancel=["endless"])
    details = details_of(stream.next().error)
    assert details.code is grpc.StatusCode.CANCELLED
    assert "subgraph 2 of 3 on TEMPLATE" in details.message
    stream.done()
    assert_same_outputs(hetero.infer(other.name, other.inputs), other.expected(), 1e-5)
    assert_settled(hetero)
    hetero.unload(case.name, other.name)


def test_many_callers_of_several_split_networks_get_their_own_results(hetero: Server) -> None:
    cases = (networks.mlp(), networks.image())
    for at, case in enumerate(cases):
        load(hetero, case, "HETERO:CPU,CPU2,TEMPLATE", at_random(case, at, "CPU", "CPU2"))

    def work(caller: int) -> None:
        for turn in range(10):
            at = (caller + turn) % 2
            shape = (turn % 3 + 1, 8) if at == 0 else (1, 3, 32, 32)
            inputs = {"x": networks.random(*shape, seed=10 * caller + turn)}
            outputs = hetero.infer(cases[at].name, inputs)
            assert_same_outputs(outputs, cases[at].expected(inputs), 1e-5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert_settled(hetero)
    hetero.unload(*(case.name for case in cases))


def test_no_request_is_lost_or_answered_twice_whatever_befalls_it(hetero: Server) -> None:
    """Two streams send as fast as they can, cancel at random, and give some no time at all."""
    case = networks.image()
    load(hetero, case, "HETERO:CPU,CPU2,TEMPLATE", at_random(case, 5, "CPU", "CPU2"))
    dice = random.Random(1)
    streams = [Stream(hetero.stub) for _ in range(2)]
    for number in range(REQUESTS):
        fields: dict[str, Any] = {"id": f"r{number}", "priority": dice.randint(-10, 10)}
        if dice.random() < 0.2:
            fields["timeout_seconds"] = dice.choice((1e-6, 1e-3, 3e-3))
        stream = streams[number % 2]
        stream.send(infer_request(case.name, case.inputs, **fields))
        if dice.random() < 0.2:
            stream.send(cancel=[f"r{dice.randint(0, number)}"])
    for stream in streams:
        stream.done()
    results = [each for stream in streams for each in stream.results]
    assert sorted(each.id for each in results) == sorted(f"r{n}" for n in range(REQUESTS))
    outcomes = Counter(map(outcome_of, results))
    assert outcomes.keys() <= {"OK", "CANCELLED", "DEADLINE_EXCEEDED"}
    assert outcomes["OK"] > 0
    assert hetero.total("headrace_network_accepted_total", network=case.name) == REQUESTS
    assert_settled(hetero)
    hetero.unload(case.name)


def test_an_exported_network_comes_back_with_its_subgraphs(hetero: Server) -> None:
    case = networks.transformer()
    load(hetero, case, DEVICES, at_random(case, 1, "CPU", "TEMPLATE"))
    count = metric(hetero, case.name, "HETERO_NUMBER_OF_SUBGRAPHS")
    blob = hetero.export(case.name)
    hetero.unload(case.name)
    info = hetero.import_blob(blob, "again")
    assert info.device == DEVICES
    assert not [note for note in info.notes if "anew" in note]
    assert metric(hetero, "again", "HETERO_NUMBER_OF_SUBGRAPHS") == count
    assert_same_outputs(hetero.infer("again", case.inputs), case.expected(), 1e-5)
    hetero.unload("again")


def test_a_blob_for_other_devices_is_split_anew_and_says_so(hetero: Server) -> None:
    case = networks.mlp()
    load(hetero, case, "HETERO:CPU,CPU2", {"dense2": "CPU2", "relu2": "CPU2"})
    blob = hetero.export(case.name)
    info = hetero.import_blob(blob, "elsewhere", "HETERO:CPU2,CPU")
    assert any("anew" in note for note in info.notes)
    assert_same_outputs(hetero.infer("elsewhere", case.inputs), case.expected(), 1e-5)
    hetero.unload(case.name, "elsewhere")


def test_keys_reach_the_device_that_their_prefix_names(hetero: Server) -> None:
    case = networks.mlp()
    load(hetero, case, DEVICES, config={"CPU.NUM_STREAMS": "1", "PERF_COUNT": "YES"})
    hetero.unload(case.name)
    for config in ({"CPU2.NUM_STREAMS": "1"}, {"CPU.NUM_STREAM": "1"}, {"NUM_STREAM": "1"}):
        with pytest.raises(grpc.RpcError) as caught:
            load(hetero, case, DEVICES, config=config)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_the_list_may_stand_in_the_configuration(hetero: Server) -> None:
    case = networks.mlp()
    with pytest.raises(grpc.RpcError) as caught:
        load(hetero, case, "HETERO")
    details = details_of(caught.value)
    assert details.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "HETERO:CPU,TEMPLATE" in details.message
    config = {"TARGET_FALLBACK": "TEMPLATE,CPU", "CPU.NUM_STREAMS": "1"}
    load(hetero, case, "HETERO", {"dense2": "CPU", "relu2": "CPU"}, config=config)
    assert set(metric(hetero, case.name, "EXECUTION_DEVICES").values) == {"CPU.0", "TEMPLATE.0"}
    hetero.unload(case.name)


def test_a_load_under_way_can_be_given_up(hetero: Server) -> None:
    """Nothing of it stays behind; the name is free again."""
    case = networks.image()
    request = pb.LoadNetworkRequest(
        name=case.name,
        model=pb.ModelSource(data=case.model.SerializeToString()),
        device="HETERO:CPU,GATED",
        affinities=at_random(case, 0, "CPU", "GATED"),
    )

    def listed() -> int:
        reply = hetero.stub.ListNetworks(pb.ListNetworksRequest(), timeout=CALL_SECONDS)
        return len(reply.networks)

    set_config(hetero, "GATED", HOLD="YES")
    call = hetero.stub.LoadNetwork.future(request, timeout=CALL_SECONDS)
    until(lambda: WAITS in hetero.log(), "the load was to wait")
    call.cancel()
    until(lambda: listed() == 0, "the load was to end")
    load(hetero, case, DEVICES)
    assert_same_outputs(hetero.infer(case.name, case.inputs), case.expected(), 1e-5)
    hetero.unload(case.name)
