"""The assignment of layers to devices: affinities, the order of the list, islands, refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.hetero.planning.assignment import Assignment, Reasons, assign
from headrace.plugins.hetero.planning.layers import TopLayer, edges_between, layer_of, pinned_layers
from headrace.plugins.hetero.planning.partition import Part
from headrace.runtime.errors import FailedPrecondition, InvalidArgument
from headrace.runtime.network.network import Network
from headrace.testing.case import network_of

Edges = list[tuple[int, int]]


def layers(names: str, constants: str = "") -> list[TopLayer]:
    """A layer for each letter."""
    return [TopLayer(name, "Op", constant=name in constants) for name in names]


def chain(count: int) -> Edges:
    return [(n, n + 1) for n in range(count - 1)]


def only(**devices: str) -> dict[str, dict[str, str]]:
    """Verdicts: each device refuses the layers listed for it."""
    return {
        device: {name: f"no kernel for {name}" for name in refused}
        for device, refused in devices.items()
    }


def shown(found: Assignment, listed: Sequence[TopLayer]) -> list[tuple[str, str]]:
    return [
        (part.affinity, "".join(listed[node].name for node in part.nodes)) for part in found.parts
    ]


def chained(names: str, devices: str, **options: object) -> list[tuple[str, str]]:
    """The parts of a chain of layers."""
    listed = layers(names)
    found = assign(listed, chain(len(names)), list(devices), **options)  # type: ignore[arg-type]
    return shown(found, listed)


# -- the order of the list --


def test_every_layer_goes_to_the_first_device_that_supports_it() -> None:
    assert chained("abcdef", "XY", verdicts=only(X="cd")) == [("X", "ab"), ("Y", "cd"), ("X", "ef")]


def test_all_goes_to_the_first_device_if_it_supports_all() -> None:
    assert chained("abc", "XY", verdicts=only(Y="abc")) == [("X", "abc")]


def test_a_third_device_takes_what_the_first_two_do_not() -> None:
    verdicts = only(X="cdef", Y="ef")
    assert chained("abcdef", "XYZ", verdicts=verdicts) == [("X", "ab"), ("Y", "cd"), ("Z", "ef")]


def test_parts_come_in_execution_order_whatever_the_order_of_the_graph() -> None:
    listed = layers("dcba")
    found = assign(listed, [(3, 2), (2, 1), (1, 0)], ["X", "Y"], only(X="ab"))
    assert shown(found, listed) == [("Y", "ba"), ("X", "dc")]


def test_devices_are_opaque() -> None:
    listed = layers("abcd")
    nested = "BATCH:CPU(2)"
    found = assign(listed, chain(4), [nested, "TEMPLATE"], {nested: {"c": "?", "d": "?"}})
    assert found.devices == (nested, nested, "TEMPLATE", "TEMPLATE")


# -- affinities --


def test_an_affinity_wins_over_the_order_of_the_list() -> None:
    wanted = {"c": "Y", "d": "Y"}
    assert chained("abcd", "XY", verdicts={}, affinities=wanted) == [("X", "ab"), ("Y", "cd")]


def test_the_callers_affinity_wins_over_the_networks() -> None:
    listed = [TopLayer("a", "Op", affinity="Y"), TopLayer("b", "Op", affinity="Y")]
    assert assign(listed, chain(2), ["X", "Y"], {}, {"a": "X"}).devices == ("X", "Y")


def test_case_does_not_matter_and_a_type_stands_for_its_first_device() -> None:
    pinned = pinned_layers(layers("ab"), ["CPU", "GPU.1", "GPU.0"], {"a": "cpu", "b": "GPU"})
    assert pinned == {0: "CPU", 1: "GPU.1"}


def test_an_affinity_to_a_device_outside_the_list_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"layer 'b' has the affinity 'Z'.*X, Y") as caught:
        assign(layers("ab"), chain(2), ["X", "Y"], {}, {"b": "Z"})
    assert caught.value.field == "affinities['b']"


def test_the_networks_own_affinity_to_a_device_outside_the_list_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="layer 'a' has the affinity 'Z'") as caught:
        assign([TopLayer("a", "Op", affinity="Z")], [], ["X"], {})
    assert caught.value.field == "affinities['a']"


def test_an_affinity_to_a_device_that_does_not_support_the_layer_is_refused() -> None:
    with pytest.raises(FailedPrecondition, match=r"layer 'b' \(Op\).*'Y'.*no kernel") as caught:
        assign(layers("ab"), chain(2), ["X", "Y"], only(Y="b"), {"b": "Y"})
    assert caught.value.field == "affinities['b']"


def test_an_affinity_of_no_layer_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no layer 'convv'; did you mean 'conv'") as caught:
        assign([TopLayer("conv", "Conv")], [], ["X"], {}, {"convv": "X"})
    assert caught.value.field == "affinities['convv']"


def test_an_affinity_inside_of_a_body_is_refused_naming_its_owner() -> None:
    loop = TopLayer("loop", "Loop", inside=("loop/body/add",))
    with pytest.raises(InvalidArgument, match="inside of 'loop'"):
        assign([loop], [], ["X"], {}, {"loop/body/add": "X"})


# -- constants --


def test_a_constant_follows_its_reader_whatever_the_devices_say_of_it() -> None:
    listed = layers("kabcd", constants="k")
    found = assign(listed, [(1, 2), (2, 3), (3, 4), (0, 3)], ["X", "Y"], only(X="cd", Y="k"))
    assert shown(found, listed) == [("X", "ab"), ("Y", "kcd")]


def test_a_constant_that_several_parts_read_is_listed_in_the_first() -> None:
    listed = layers("kabcd", constants="k")
    edges = [(1, 2), (2, 3), (3, 4), (0, 2), (0, 4)]
    found = assign(listed, edges, ["X", "Y"], only(X="cd"))
    assert shown(found, listed) == [("X", "kab"), ("Y", "cd")]
    assert found.devices == ("X", "X", "X", "Y", "Y")


def test_a_constant_connects_nothing() -> None:
    listed = layers("kabc", constants="k")
    found = assign(listed, [(0, 1), (0, 2)], ["X", "Y"], only(X="c"))
    assert shown(found, listed) == [("X", "ka"), ("X", "b"), ("Y", "c")]


def test_a_constant_that_is_an_output_itself_is_a_layer_like_any_other() -> None:
    listed = layers("k", constants="k")
    assert shown(assign(listed, [], ["X", "Y"], only(X="k")), listed) == [("Y", "k")]


def test_an_affinity_of_a_constant_is_not_followed_and_said_so() -> None:
    listed = layers("kab", constants="k")
    found = assign(listed, [(0, 1), (1, 2)], ["X", "Y"], {}, {"k": "Y"})
    assert found.devices == ("X", "X", "X")
    assert any("constants" in note and "k" in note for note in found.notes)


def test_a_constant_that_only_unsupported_layers_read_is_unsupported() -> None:
    found = assign(layers("ka", constants="k"), [(0, 1)], ["X"], only(X="a"))
    assert [(each.layer, each.device) for each in found.unsupported] == [("k", ""), ("a", "X")]
    assert found.devices == ("", "")


# -- islands --


def test_a_layer_alone_joins_its_neighbours_device_if_that_supports_it() -> None:
    verdicts = only(X="abde")
    assert chained("abcde", "XY", verdicts=verdicts) == [("Y", "abcde")]


def test_the_first_and_the_last_layer_join_their_only_neighbour() -> None:
    assert chained("ab", "XY", verdicts={}, affinities={"b": "Y"}) == [("Y", "ab")]
    assert chained("ab", "XY", verdicts={}, affinities={"a": "Y"}) == [("Y", "ab")]


def test_joining_is_reported() -> None:
    found = assign(layers("abcde"), chain(5), ["X", "Y"], only(X="abde"))
    assert found.notes == (
        "moved from X to Y (copying its tensors to X and back costs more than it saves there): c",
    )


def test_joining_can_be_turned_off() -> None:
    verdicts = only(X="abde")
    parts = chained("abcde", "XY", verdicts=verdicts, merge_islands=False)
    assert parts == [("Y", "ab"), ("X", "c"), ("Y", "de")]


def test_a_layer_alone_stays_where_its_affinity_says() -> None:
    parts = chained("abcde", "XY", verdicts={}, affinities={"c": "Y"})
    assert parts == [("X", "ab"), ("Y", "c"), ("X", "de")]


def test_a_layer_alone_stays_if_no_neighbours_device_supports_it() -> None:
    verdicts = only(X="abde", Y="c")
    assert chained("abcde", "XY", verdicts=verdicts) == [("Y", "ab"), ("X", "c"), ("Y", "de")]


def test_every_second_layer_alone_joins_those_between() -> None:
    assert chained("abcdefgh", "XY", verdicts=only(X="bdfh")) == [("Y", "abcdefgh")]


def test_of_several_neighbours_the_one_with_most_tensors_between_is_joined() -> None:
    listed = layers("pqxrs")
    edges = [(0, 1), (1, 2), (2, 3), (2, 4), (3, 4)]
    found = assign(listed, edges, ["X", "Y", "Z"], only(X="pqrs", Y="rs"))
    assert shown(found, listed) == [("Y", "pq"), ("Z", "xrs")]


def test_two_layers_on_a_device_of_their_own_are_no_island() -> None:
    verdicts = only(X="abef")
    assert chained("abcdef", "XY", verdicts=verdicts)[1] == ("X", "cd")


def test_an_island_beside_another_way_joins_one_of_its_neighbours() -> None:
    listed = layers("abcd")
    found = assign(listed, [(0, 1), (0, 2), (1, 3), (2, 3)], ["X", "Y"], only(X="ad", Y="c"))
    assert len(found.parts) == 3
    assert found.devices[1] == "Y"


# -- refused once a part is loaded --


def fused(first: str, second: str, device: str) -> Callable[[Part, Sequence[TopLayer]], Reasons]:
    """A device that runs `first` only together with `second`."""

    def refuse(part: Part, listed: Sequence[TopLayer]) -> Reasons:
        names = {listed[node].name for node in part.nodes}
        alone = part.affinity == device and first in names and second not in names
        return {first: f"no kernel without {second}"} if alone else {}

    return refuse


def settled(
    listed: Sequence[TopLayer],
    edges: Edges,
    devices: Sequence[str],
    verdicts: Mapping[str, Reasons],
    refuse: Callable[[Part], Reasons],
    affinities: Mapping[str, str] | None = None,
    *,
    merge_islands: bool = True,
) -> Assignment:
    """Assigns layers until no device refuses any of its parts, as a load does."""
    later: dict[str, dict[str, str]] = {}
    while True:
        found = assign(
            listed, edges, devices, verdicts, affinities, later=later, merge_islands=merge_islands
        )
        before = repr(later)
        for part in found.parts:
            later.setdefault(part.affinity, {}).update(refuse(part))
        if repr(later) == before or all(not refuse(part) for part in found.parts):
            return found


def rechecked(
    names: str,
    devices: str,
    verdicts: Mapping[str, Reasons],
    *rules: Callable[[Part, Sequence[TopLayer]], Reasons],
    affinities: Mapping[str, str] | None = None,
) -> Assignment:
    listed = layers(names)

    def refuse(part: Part) -> Reasons:
        return {name: why for rule in rules for name, why in rule(part, listed).items()}

    return settled(listed, chain(len(names)), list(devices), verdicts, refuse, affinities)


def test_a_layer_refused_once_cut_off_moves_to_the_next_device_that_supports_it() -> None:
    found = rechecked("abcdef", "XYZ", only(X="de", Y="c"), fused("c", "d", "X"))
    assert found.devices == ("X", "X", "Z", "Y", "Y", "Y")


def test_moving_is_reported() -> None:
    found = rechecked("abcdef", "XY", only(X="def"), fused("c", "d", "X"))
    assert found.devices == ("X", "X", "Y", "Y", "Y", "Y")
    assert found.notes == (
        "moved from X to Y (X runs them only together with layers that are elsewhere): c",
    )


def test_a_chain_of_refusals_ends_when_nothing_is_refused() -> None:
    rules = [fused(first, second, "X") for first, second in zip("abcd", "bcde", strict=True)]
    found = rechecked("abcdef", "XY", only(X="ef"), *rules)
    assert set(found.devices) == {"Y"}
    assert len(found.parts) == 1


def test_a_layer_that_joined_a_neighbour_and_is_refused_there_goes_home() -> None:
    found = rechecked("abcde", "XY", only(X="abde"), fused("c", "?", "Y"))
    assert found.devices[2] == "X"
    assert found.notes == ()


def test_a_layer_with_an_affinity_that_is_refused_once_cut_off_is_an_error() -> None:
    with pytest.raises(FailedPrecondition, match=r"layer 'c'.*around it run elsewhere") as caught:
        rechecked("abcdef", "XY", only(X="def"), fused("c", "d", "X"), affinities={"c": "X"})
    assert caught.value.field == "affinities['c']"


def test_where_a_constant_is_refused_its_readers_are() -> None:
    listed = layers("kabc", constants="k")

    later = {"X": {"k": "bfloat16"}}
    found = assign(listed, [(0, 1), (1, 2), (2, 3)], ["X", "Y"], {}, later=later)
    assert found.devices == ("Y", "Y", "X", "X")


def test_where_a_layer_of_a_body_is_refused_its_owner_is() -> None:
    listed = [TopLayer("loop", "Loop", inside=("loop/body/add",)), TopLayer("b", "Op")]
    found = assign(listed, [(0, 1)], ["X", "Y"], {}, later={"X": {"loop/body/add": "?"}})
    assert found.devices[0] == "Y"


def test_a_refusal_of_a_layer_that_is_not_there_is_not_heard() -> None:
    listed = layers("ab")
    found = assign(listed, chain(2), ["X"], {}, later={"X": {"elsewhere": "?"}})
    assert shown(found, listed) == [("X", "ab")]


# -- nothing left --


def test_every_layer_without_a_device_is_listed_with_each_devices_reason() -> None:
    found = assign(layers("abc"), chain(3), ["X", "Y"], only(X="ac", Y="acb"))
    assert [(each.layer, each.device, each.reason) for each in found.unsupported] == [
        ("a", "X", "no kernel for a"),
        ("a", "Y", "no kernel for a"),
        ("c", "X", "no kernel for c"),
        ("c", "Y", "no kernel for c"),
    ]
    assert found.devices == ("", "X", "")
    assert [part.nodes for part in found.parts] == [(1,)]


def test_a_layer_that_every_device_refused_once_cut_off_is_listed_with_that_reason() -> None:
    found = rechecked("abcd", "X", only(X="d"), fused("c", "d", "X"))
    assert [(each.layer, each.device) for each in found.unsupported] == [("c", "X"), ("d", "X")]
    assert "run elsewhere" in found.unsupported[0].reason


# -- any network --


@st.composite
def problems(
    draw: st.DrawFn,
) -> tuple[list[TopLayer], Edges, list[str], dict[str, Reasons], set[tuple[str, str, str]]]:
    """Layers, edges, devices, verdicts, and triples (device, layer, what it must be fused with)."""
    count = draw(st.integers(1, 10))
    names = [f"n{n}" for n in range(count)]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = [(a, b) for a, b in draw(st.lists(pairs, max_size=20)) if a < b]
    readers = {b for _, b in edges}
    listed = [
        TopLayer(name, "Op", constant=place not in readers and draw(st.booleans()))
        for place, name in enumerate(names)
    ]
    devices = list("XYZ"[: draw(st.integers(1, 3))])
    some = st.sets(st.sampled_from(names))
    verdicts: dict[str, Reasons] = {each: dict.fromkeys(draw(some), "no") for each in devices}
    fusions = st.tuples(st.sampled_from(devices), st.sampled_from(names), st.sampled_from(names))
    return listed, edges, devices, verdicts, draw(st.sets(fusions, max_size=6))


@given(problems(), st.booleans())
def test_every_layer_ends_on_a_device_that_runs_it_there_or_is_listed(
    problem: tuple[list[TopLayer], Edges, list[str], dict[str, Reasons], set[tuple[str, str, str]]],
    merge_islands: bool,
) -> None:
    listed, edges, devices, verdicts, fusions = problem

    def refuse(part: Part) -> Reasons:
        names = {listed[node].name for node in part.nodes}
        return {
            layer: "cut off"
            for device, layer, partner in fusions
            if device == part.affinity and layer in names and partner not in names
        }

    found = settled(listed, edges, devices, verdicts, refuse, merge_islands=merge_islands)
    read = {source for source, _ in edges}
    owner = {node: at for at, part in enumerate(found.parts) for node in part.nodes}
    placed = [node for part in found.parts for node in part.nodes]
    assert len(placed) == len(set(placed))
    missing = {each.layer for each in found.unsupported}
    for place, layer in enumerate(listed):
        assert (found.devices[place] == "") == (layer.name in missing) == (place not in owner)
        if place in owner:
            assert found.parts[owner[place]].affinity == found.devices[place]
            if not (layer.constant and place in read):
                assert layer.name not in verdicts[found.devices[place]]
    for source, reader in edges:
        if source in owner and reader in owner:
            assert owner[source] <= owner[reader]
    for part in found.parts:
        refused = refuse(part).keys()
        assert all(listed[node].constant for node in part.nodes if listed[node].name in refused)


# -- from a network --


def network() -> Network:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[2] x, bool c) => (float[2] y) {
      [k] k = Constant <value: tensor = float[2] {1, 2}> ()
      [a] a = Add (x, k)
      [choice] b = If (c) <
        then_branch = t () => (float[2] tt) { [inner] tt = Mul (a, k) },
        else_branch = e () => (float[2] ee) { [other] ee = Identity (x) }
      >
      [z] y = Add (b, b)
    }
    """
    model = onnx.parser.parse_model(text)
    model.graph.node[1].metadata_props.add(key="affinity", value="CPU")
    return network_of(model)


def test_a_layer_with_bodies_is_one_and_reads_what_they_read() -> None:
    nodes = list(network().model.graph)
    listed, edges = [layer_of(node) for node in nodes], edges_between(nodes)
    assert [layer.name for layer in listed] == ["k", "a", "choice", "z"]
    assert sorted(edges) == [(0, 1), (0, 2), (1, 2), (2, 3)]
    assert listed[2].inside == ("choice/then_branch/inner", "choice/else_branch/other")


def test_constants_and_affinities_are_read_from_the_network() -> None:
    listed = [layer_of(node) for node in network().model.graph]
    assert [layer.constant for layer in listed] == [True, False, False, False]
    assert [layer.affinity for layer in listed] == ["", "CPU", "", ""]
