"""Which layers ONNX Runtime runs, asked layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from headrace.plugins.cpu.backend.session import Provider
from headrace.plugins.cpu.support import OnnxRuntimeTrials
from headrace.runtime.device.load import Load
from headrace.runtime.device.plugin import Plugin
from headrace.runtime.errors import Cancelled, UnsupportedLayers
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.network.network import Network
from headrace.runtime.system.interruption import interruptible
from headrace.runtime.transform import single_layer
from headrace.runtime.transform.transform import transform_network
from headrace.testing import networks
from headrace.testing.backend_cases.cases import node_tests
from headrace.testing.case import network_of, parse
from headrace.testing.compare import assert_same_outputs
from headrace.testing.infer_request import InferRequest


@pytest.fixture(scope="module")
def backend_cases() -> list[Any]:
    """onnx's cases for single operators, generated in four seconds."""
    return list(node_tests())


def reasons(plugin: Plugin, of: Network) -> dict[str, str]:
    return {layer.layer: layer.reason for layer in plugin.query_network(of, {}).unsupported}


@pytest.mark.parametrize("case", networks.control_flow(), ids=str)
def test_bodies_that_capture_values_are_supported(plugin: Plugin, case: Any) -> None:
    assert not reasons(plugin, case.network)


def test_a_layer_without_a_kernel_for_its_types_says_so(plugin: Plugin) -> None:
    given = network_of("a (bfloat16[2] x) => (bfloat16[2] y) { [neg] y = Neg(x) }")
    assert reasons(plugin, given) == {"neg": "no kernel for Neg(13) on tensor(bfloat16)"}


@pytest.mark.parametrize(("length", "refused"), [(16_384, False), (16_385, True)])
def test_a_pattern_that_takes_long_to_load_says_so(
    plugin: Plugin, length: int, refused: bool
) -> None:
    pattern = "a" * length
    text = f'a (string[n] x) => (bool[n] y) {{ [m] y = RegexFullMatch<pattern="{pattern}">(x) }}'
    why = "the pattern has 16,385 characters; at most 16,384 are allowed"
    assert reasons(plugin, network_of(text)) == ({"m": why} if refused else {})


def test_an_unknown_operator_says_so(plugin: Plugin) -> None:
    found = reasons(plugin, networks.unknown_operators().network)
    assert set(found) == {"strange", "stranger"}
    assert "Strange" in found["strange"]


def test_a_constant_of_another_domain_than_onnxs_is_refused_by_query_and_load(
    plugin: Plugin,
) -> None:
    text = (
        "a (float[2] x) => (float[2] y) { [made] y = headrace.test.Constant<value_ints = [1]>(x) }"
    )
    given = network_of(text)
    assert "takes a Constant of the domain 'headrace.test'" in reasons(plugin, given)["made"]
    with pytest.raises(UnsupportedLayers, match="takes a Constant of the domain"):
        plugin.load_network(Load(given, {}))


@pytest.mark.parametrize(
    "layer",
    ["z = Not(t)", "z = Where(t, x, x)", "z = Gather(x, t)", "z = Where(u, t, x)", "z = Add(t, u)"],
)
def test_a_layer_of_onnx_behind_an_unknown_one_is_not_refused_for_it(
    plugin: Plugin, layer: str
) -> None:
    given = network_of(
        "u (float[2] x) => (float[2] y) { [strange] t, u = headrace.test.Strange(x) "
        f"[last] {layer} [keep] y = headrace.test.Stranger(z) }}"
    )
    assert set(reasons(plugin, given)) == {"strange", "keep"}


def test_a_layer_that_takes_its_sizes_as_an_input_is_supported(plugin: Plugin) -> None:
    given = network_of(
        "r (float[1,1,4,4] x, int64[4] s) => (float[a,b,c,d] y) "
        '{ [grow] y = Resize<mode = "nearest">(x, , , s) }'
    )
    assert not reasons(plugin, given)


def test_a_kernel_that_wants_a_constant_gets_it(plugin: Plugin) -> None:
    text = "t (float[2,3] x) => (float[3] y, int64[3] i) { [top] y, i = ReduceTopK(x) }"
    given = network_of(text.replace("ReduceTopK(x)", "TopK<axis = 0>(x, k)"), {"k": np.array([1])})
    assert not reasons(plugin, given)


def test_a_function_of_the_model_itself_is_supported_or_not_by_its_body(plugin: Plugin) -> None:
    assert not reasons(plugin, networks.local_function().network)
    assert reasons(plugin, networks.local_function("Unheard(v)").network)


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_pools_over_more_axes_than_there_are_kernels_for_are_refused(
    plugin: Plugin, axes: int
) -> None:
    sizes = ",".join(["1", "2", *["4"] * axes])
    kernel = ",".join(["2"] * axes)
    given = network_of(
        f"p (float[{sizes}] x) => (float[{','.join('abcdef'[: axes + 2])}] y) "
        f"{{ [pool] y = AveragePool<kernel_shape = [{kernel}]>(x) }}"
    )
    refused = reasons(plugin, given)
    assert bool(refused) == (axes == 4)
    if refused:
        with pytest.raises(UnsupportedLayers, match="spatial axes"):
            plugin.load_network(Load(given))


@pytest.mark.parametrize(("scale", "supported"), [(2.0, True), (1.5, True), (0.6, False)], ids=str)
def test_resizing_by_a_scale_that_gives_no_whole_size_is_refused_with_aligned_corners(
    plugin: Plugin, scale: float, supported: bool
) -> None:
    given = network_of(
        "r (float[1,1,4,4] x) => (float[a,b,c,d] y) { [resize] y = Resize"
        '<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , s) }',
        {"s": np.array([1, 1, scale, scale], np.float32)},
    )
    assert bool(reasons(plugin, given)) != supported


@pytest.mark.long  # tests/conformance/test_backend_sample.py has a sample of all operators
@pytest.mark.parametrize(
    "op_type", ["Attention", "ConvInteger", "MaxUnpool", "Mod", "ReduceMax", "Resize"]
)
def test_of_onnxs_own_cases_every_one_that_is_claimed_runs_and_is_right(
    plugin: Plugin, backend_cases: list[Any], op_type: str
) -> None:
    tried = 0
    for case in backend_cases:
        (node, *others) = case.model.graph.node
        if others or node.op_type != op_type or case.name.endswith("_fp16"):
            continue  # float16 is compared with more digits than it has
        given = network_of(case.model)
        if reasons(plugin, given):
            continue
        loaded = plugin.load_network(Load(given))
        for inputs, outputs in case.data_sets:
            names = [port.name for port in given.inputs]
            arrays = {
                port.name: np.asarray(value).view(port.dtype.numpy())
                for port, value in zip(given.inputs, inputs, strict=True)
            }
            assert set(arrays) == set(names)
            found = InferRequest(loaded).infer(arrays)
            wanted = dict(zip([port.name for port in given.outputs], outputs, strict=True))
            assert_same_outputs(found, wanted, 1e-3)
            tried += 1
        loaded.close()
    assert tried


def test_alike_layers_are_asked_about_once() -> None:
    given = transform_network(
        network_of(
            "a (float[2,3] x) => (float[2,3] z) { [first] y = Relu(x) [second] z = Relu(y) }"
        )
    )
    asked = {
        single_layer.network_of(
            node, given.model, 10, lambda domain, version: version
        ).SerializeToString(deterministic=True)
        for node in given.nodes()
    }
    assert len(asked) == 1


def test_sizes_do_not_part_alike_layers() -> None:
    texts = (f"a (float[{n},3] x) => (float[{n},3] y) {{ y = Relu(x) }}" for n in (2, 7))
    models = []
    for text in texts:
        given = transform_network(network_of(text))
        (node,) = given.nodes()
        models.append(
            single_layer.network_of(node, given.model, 10, lambda domain, version: version)
        )
    assert models[0] == models[1]


@pytest.mark.parametrize(
    "text",
    [
        "a (float[1,1] x) => (float y, float z, float u) { y, z, u = Split(x) }",
        """a (float[1,1,1,1] x, float[1,1,1,1] u, int64[2] i) => (float y) {
            y = TensorScatter(x, u, i)
        }""",
        "a (int64[?] i, float d, float[?] v) => (float y) { y = OneHot<axis=3>(i, d, v) }",
        """a (float[] s, float[1,2] x) => (float y, float z) {
            y, z = Scan(s, x) <num_scan_inputs=1, body = b
                (float[1] t, float[3] u) => (float[1] v, float[1] w) {
                    v = Identity(t)
                    w = Identity(t)
                }
            >
        }""",
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_a_query_as_by_a_load(
    plugin: Plugin, text: str
) -> None:
    def given() -> Network:
        return network_of(text, opset=24 if "TensorScatter" in text else 13)

    assert reasons(plugin, given())
    with pytest.raises(UnsupportedLayers):
        plugin.load_network(Load(given()))


def test_sizes_that_are_only_declared_refuse_no_layer_of_a_network_that_loads(
    plugin: Plugin,
) -> None:
    text = "a (float[4] x) => (float[a] y, float[b] z) { t = Relu(x) y, z = Split(t) }"
    model = parse(text, opset=13)
    wrong = onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [3])
    model.graph.value_info.append(wrong)
    assert not reasons(plugin, network_of(model))


def test_a_network_that_the_backend_refuses_once_it_is_optimised_runs_as_it_is(
    plugin: Plugin,
) -> None:
    given = network_of(
        """a (int64 i) => (float[n] y, int64 z) <int64[2] s = {3, 4}> {
            zero = Constant<value_int = 0>()
            one = Constant<value_int = 1>()
            two = Constant<value_int = 2>()
            size = Size(s)
            yes = Equal(size, two)
            n = If (yes) <
                then_branch = t () => (int64[m] a) { [split] a, b = Split<num_outputs=2>(s) },
                else_branch = e () => (int64[m] a) { [join] a = Concat<axis=0>(s, s) }
            >
            y = HannWindow(n)
            z = Identity(i)
        }"""
    )
    assert not reasons(plugin, given)
    loaded = plugin.load_network(Load(given))
    found: Any = InferRequest(loaded).infer({"i": np.array(5)})["y"]
    np.testing.assert_allclose(found, [0, 0.75, 0.75], rtol=1e-6)
    assert any(note.startswith("not optimised") for note in loaded.notes)
    loaded.close()


def test_the_table_of_answers_is_bounded_and_forgets_the_oldest() -> None:
    trials = OnnxRuntimeTrials(Provider(), capacity=2)

    def relu(opset: int) -> onnx.ModelProto:
        return parse("a (float[2] x) => (float[2] y) { y = Relu(x) }", opset=opset)

    for opset in (13, 14, 13, 15):
        assert trials.reason(relu(opset)) is None
    assert len(trials) == 2


def test_a_trial_that_nobody_wants_is_ended_and_is_no_answer() -> None:
    """A layer that calls functions that call functions takes ONNX Runtime a minute."""
    trials, token = OnnxRuntimeTrials(Provider()), CancelToken()
    token.cancel(Cancelled("the caller left"))
    relu = parse("a (float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(Cancelled, match="the caller left"), interruptible(token):
        trials.reason(relu)
    assert len(trials) == 0
    assert trials.reason(relu) is None


def test_a_layer_that_the_provider_leaves_to_another_one_has_no_kernel_there() -> None:
    add = networks.add().model.SerializeToString()
    reason = OnnxRuntimeTrials(Provider("CoreMLExecutionProvider")).reason(
        onnx.load_from_string(add)
    )
    assert reason == "CoreMLExecutionProvider has no kernel for it"
