"""What a picture of a query shows: boxes, groups, lines and what is written on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from headrace.client import ExecutableLayer, Graph, Port, QueryResult, Subgraph, UnsupportedLayer
from headrace.client.cli.drawing import colours
from headrace.client.cli.drawing.picture import Box, Line, Picture, picture
from headrace.client.cli.texts import bytes_text, describe, type_text, visible
from headrace.client.info import Ports, size_bytes


def layer(
    name: str, inputs: Sequence[str], op_type: str = "Relu", domain: str = ""
) -> ExecutableLayer:
    return ExecutableLayer(name, op_type, domain, "", tuple(inputs), (f"{name}.out",), ())


def tensor(name: str, *shape: int | str | None, dtype: str = "float32") -> Port:
    return Port(name, dtype, shape)


def graph(*layers: ExecutableLayer, outputs: Sequence[str] = ()) -> Graph:
    made = [tensor(name, 4) for each in layers for name in each.outputs]
    return Graph(
        layers,
        Ports([tensor("x", "n", 4)]),
        Ports(tensor(name, 4) for name in outputs),
        Ports(made),
    )


def chain(length: int) -> Graph:
    """Layers l0, l1, … one after the other."""
    layers = [layer(f"l{i}", [f"l{i - 1}.out" if i else "x"]) for i in range(length)]
    return graph(*layers, outputs=[f"l{length - 1}.out"])


def split(parts: Sequence[tuple[str, Sequence[str]]], **unsupported: str) -> QueryResult:
    """The answer of a device that splits networks; `unsupported` are layers and reasons."""
    return QueryResult(
        {name: device for device, names in parts for name in names},
        [UnsupportedLayer(name, "Relu", reason) for name, reason in unsupported.items()],
        [Subgraph(device, list(names)) for device, names in parts],
    )


def names(length: int, start: int = 0) -> list[str]:
    return [f"l{i}" for i in range(start, length)]


def boxes(found: Picture) -> Mapping[str, Box]:
    inside = [box for group in found.groups for box in group.boxes]
    return {box.key: box for box in (*inside, *found.boxes)}


def lines(found: Picture) -> Mapping[tuple[str, str], Line]:
    return {(line.source, line.target): line for line in found.lines}


# ---- few layers ----


def test_subgraphs_are_frames_in_execution_order() -> None:
    found = picture(split([("B", ["l0"]), ("A", ["l1", "l2"]), ("B", ["l3"])]), chain(4), "title")
    assert [group.heading for group in found.groups] == [
        "subgraph 1 · B · 1 layer",
        "subgraph 2 · A · 2 layers",
        "subgraph 3 · B · 1 layer",
    ]
    assert [[box.lines for box in group.boxes] for group in found.groups] == [
        [("l0", "Relu")],
        [("l1", "Relu"), ("l2", "Relu")],
        [("l3", "Relu")],
    ]
    assert [box.device for group in found.groups for box in group.boxes] == [
        "B",
        "A",
        "A",
        "B",
    ]
    assert (found.title, found.summary) == ("title", "3 subgraphs, 4 layers")
    assert found.devices == ("B", "A")


def test_a_plain_device_is_one_subgraph() -> None:
    found = picture(QueryResult({"l0": "CPU", "l1": "CPU"}, [], []), chain(2), "t")
    assert [group.heading for group in found.groups] == ["subgraph 1 · CPU · 2 layers"]
    assert found.summary == "1 subgraph, 2 layers"


def test_tensors_on_the_cut_have_type_shape_and_bytes() -> None:
    found = picture(split([("A", ["l0", "l1"]), ("B", ["l2"])]), chain(3), "t")
    cut = lines(found)["layer1", "layer2"]
    assert cut.is_cut
    assert cut.lines == ("l1.out", "float32[4] · 16 B")
    inner = lines(found)["layer0", "layer1"]
    assert not inner.is_cut
    assert inner.lines == ()
    assert inner.tooltip == ("l0.out float32[4] · 16 B",)


def test_a_tensor_of_unknown_size_says_so() -> None:
    query = split([("A", ["l0"]), ("B", ["l1"])])
    given = chain(2)
    unsized = Graph(given.layers, given.inputs, given.outputs, Ports([tensor("l0.out", "n", None)]))
    assert lines(picture(query, unsized, "t"))["layer0", "layer1"].lines[1] == "float32[n,?] · ? B"
    unknown = Graph(given.layers, given.inputs, given.outputs, Ports([]))
    label = lines(picture(query, unknown, "t"))["layer0", "layer1"].lines[1]
    assert label == "unknown[...] · ? B"


def test_a_tensor_is_labelled_once_for_all_layers_that_take_it_in_a_subgraph() -> None:
    given = graph(layer("a", ["x"]), layer("b", ["a.out"]), layer("c", ["a.out"]))
    found = lines(picture(split([("A", ["a"]), ("B", ["b", "c"])]), given, "t"))
    assert [found["layer0", target].lines != () for target in ("layer1", "layer2")] == [True, False]
    assert found["layer0", "layer2"].is_cut
    apart = split([("A", ["a"]), ("B", ["b"]), ("A", ["c"])])
    found = lines(picture(apart, given, "t"))
    assert [found["layer0", target].lines != () for target in ("layer1", "layer2")] == [True, True]


def test_unsupported_layers_say_why() -> None:
    query = split([("A", ["l0"])], l1="A: no kernel")
    query.unsupported.append(UnsupportedLayer("l1", "Relu", "B: no type"))
    found = picture(query, chain(2), "t")
    box = boxes(found)["layer1"]
    assert (box.kind, box.lines) == ("unsupported", ("l1", "Relu"))
    assert box.tooltip == ("l1", "Relu", "A: no kernel", "B: no type")
    assert [each.reason for each in found.unsupported] == ["A: no kernel", "B: no type"]
    assert found.summary == "1 subgraph, 2 layers, 1 unsupported"
    assert not lines(found)["layer0", "layer1"].is_cut


def test_inputs_and_outputs_are_drawn_and_initialisers_are_not() -> None:
    given = graph(layer("a", ["x", "weight"]), outputs=["a.out"])
    found = picture(split([("A", ["a"])]), given, "t")
    assert boxes(found)["input0"].lines == ("x", "float32[n,4]")
    assert boxes(found)["output0"].lines == ("a.out", "float32[4]")
    assert list(lines(found)) == [("input0", "layer0"), ("layer0", "output0")]


def test_a_layer_in_no_answer_is_drawn_outside_of_every_subgraph() -> None:
    found = picture(split([("A", ["l0"])]), chain(2), "t")
    assert boxes(found)["layer1"].kind == "layer"
    assert [box.key for group in found.groups for box in group.boxes] == ["layer0"]


def test_an_operator_of_another_domain_shows_it() -> None:
    found = picture(split([("A", ["a"])]), graph(layer("a", ["x"], "Gelu", "com.microsoft")), "t")
    assert boxes(found)["layer0"].lines == ("a", "com.microsoft::Gelu")


def test_a_network_without_layers_is_a_picture_too() -> None:
    found = picture(QueryResult({}, [], []), graph(outputs=["x"]), "t")
    assert found.summary == "0 subgraphs, 0 layers"
    assert list(lines(found)) == [("input0", "output0")]


# ---- many layers ----


def test_many_layers_are_a_box_for_each_subgraph() -> None:
    query = split([("A", names(40)), ("B", names(100, start=40))])
    found = picture(query, chain(100), "t")
    assert found.groups == ()
    assert list(boxes(found)) == ["input0", "subgraph1", "subgraph2", "output0"]
    assert boxes(found)["subgraph2"].lines == ("subgraph 2 · B", "60 layers", "60 Relu")
    cut = lines(found)["subgraph1", "subgraph2"]
    assert cut.is_cut
    assert cut.lines == ("l39.out", "float32[4] · 16 B")
    assert found.summary == "2 subgraphs, 100 layers"


def test_all_layers_are_drawn_where_that_is_asked_for() -> None:
    query = split([("A", names(40)), ("B", names(100, start=40))])
    found = picture(query, chain(100), "t", full=True)
    assert [len(group.boxes) for group in found.groups] == [40, 60]


def test_sixty_layers_are_few() -> None:
    assert picture(split([("A", names(60))]), chain(60), "t").groups
    assert not picture(split([("A", names(61))]), chain(61), "t").groups


def test_a_box_shows_the_most_frequent_operators() -> None:
    kinds = ["Conv"] * 40 + ["Add"] * 20 + ["Relu"] * 5 + ["A", "B", "C", "D"]
    layers = [layer(f"l{i}", ["x"], op_type) for i, op_type in enumerate(kinds)]
    box = boxes(picture(split([("A", names(69))]), graph(*layers), "t"))["subgraph1"]
    assert box.lines[1:5] == ("69 layers", "40 Conv", "20 Add", "5 Relu")
    assert box.lines[-1] == "2 other operators"
    assert "1 D" in box.tooltip


def test_several_tensors_between_two_boxes_share_a_line() -> None:
    first = [layer(f"l{i}", ["x"]) for i in range(40)]
    second = [layer(f"l{i}", [f"l{i - 40}.out"]) for i in range(40, 80)]
    query = split([("A", names(40)), ("B", names(80, start=40))])
    line = lines(picture(query, graph(*first, *second), "t"))["subgraph1", "subgraph2"]
    assert line.lines[:2] == ("l0.out", "float32[4] · 16 B")
    assert line.lines[-1] == "37 more · 640 B in all"
    assert line.tooltip[-1] == "…"


def test_unsupported_layers_stay_apart_until_they_are_many() -> None:
    few = split([("A", names(90))], **dict.fromkeys(names(100, start=90), "no"))
    found = boxes(picture(few, chain(100), "t"))
    assert sum(box.kind == "unsupported" for box in found.values()) == 10
    many = split([("A", names(10))], **dict.fromkeys(names(100, start=10), "no"))
    found = boxes(picture(many, chain(100), "t"))
    assert sum(box.kind == "unsupported" for box in found.values()) == 21
    assert found["unsupported"].lines == ("70 more", "70 layers", "70 Relu")


def test_a_pipeline_is_drawn_as_steps_and_what_each_runs() -> None:
    steps = [layer("find", ["x"], "detector", "headrace.pipeline")]
    steps.append(layer("read", ["find.out"], "reader", "headrace.pipeline"))
    answer = split([("CPU", ["find"]), ("TEMPLATE", ["read"])])
    found = picture(answer, graph(*steps, outputs=["read.out"]), "p")
    assert (found.summary, found.part) == ("2 steps", "step")
    assert [group.heading for group in found.groups] == ["step 1 · CPU", "step 2 · TEMPLATE"]
    assert boxes(found)["layer1"].lines == ("read", "runs reader")


def test_many_inputs_are_one_box_between_subgraphs() -> None:
    inputs = Ports(tensor(f"x{i}", 2) for i in range(9))
    layers = tuple(layer(f"l{i}", [f"x{i % 9}"]) for i in range(61))
    given = Graph(layers, inputs, Ports([]), Ports([]))
    found = picture(split([("A", names(61))]), given, "t")
    assert boxes(found)["inputs"].lines == ("9 inputs",)
    assert len(picture(split([("A", names(61))]), given, "t", full=True).boxes) == 9


# ---- texts ----


def test_long_names_lose_a_part_but_not_their_end() -> None:
    assert visible("a" * 10_000 + "/conv1", 20) == "aaaaaa…aaaaaaa/conv1"
    assert visible("short", 5) == "short"


def test_what_cannot_be_printed_is_spelt_out() -> None:
    assert visible("a\nb\x00c\u202ed\u2028", 99) == "a\\nb\\x00c\\u202ed\\u2028"
    assert visible('é漢🌊 <b> "q" \\N', 99) == 'é漢🌊 <b> "q" \\N'


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "? B"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (602_112, "588 KiB"),
        (1_600_000, "1.5 MiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_bytes_are_in_units_that_are_read_easily(count: int | None, text: str) -> None:
    assert bytes_text(count) == text


def test_the_size_of_a_tensor_follows_from_type_and_shape() -> None:
    assert size_bytes(tensor("t")) == 4
    assert size_bytes(tensor("t", 2, 3, dtype="int64")) == 48
    assert size_bytes(tensor("t", 2, 0)) == 0
    assert size_bytes(tensor("t", 2, dtype="bfloat16")) == 4
    for unknown in (tensor("t", "n"), tensor("t", 2, dtype="string"), Port("t", "float32", None)):
        assert size_bytes(unknown) is None
    assert size_bytes(Port("t", "float32", (2,), "sequence")) is None


def test_types_are_written_in_short() -> None:
    assert describe(tensor("x", "N", None, 3)) == "x float32[N,?,3]"
    assert type_text(Port("x", "int64", None, "sequence", optional=True)) == "sequence(int64[...])?"


# ---- colours ----


def test_text_can_be_read_on_every_colour() -> None:
    for paint in (*colours.DEVICES, colours.UNSUPPORTED, colours.UNKNOWN):
        assert colours.contrast(paint.fill, paint.text) >= 4.5
        assert colours.contrast(paint.tint, "#000000") >= 7


def test_contrast_is_that_of_wcag() -> None:
    assert colours.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert colours.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


def test_no_device_has_the_red_of_what_is_unsupported() -> None:
    fills = {paint.fill for paint in colours.DEVICES}
    assert len(fills) == len(colours.DEVICES)
    assert colours.UNSUPPORTED.fill not in fills
    assert colours.of_device(len(fills)) == colours.of_device(0)
