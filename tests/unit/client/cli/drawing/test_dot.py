"""Pictures as DOT text: what stands in it, and that no name can break out of its string."""

from __future__ import annotations

import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import UnsupportedLayer
from headrace.client.cli.drawing import colours
from headrace.client.cli.drawing.dot import LISTED, html_text, quote, quote_tooltip, to_dot
from headrace.client.cli.drawing.picture import Box, Group, Line, Picture
from tests.support.dot_text import parse, shown

HOSTILE = (
    'a "quoted" name',
    "back\\slash \\N \\G \\n \\l \\",
    '\\"',
    "<b>bold</b> <!-- -->",
    "&lt;b&gt; &amp; &#65; &",
    "line\nend\r\ttab\x00\x1b[31m",
    "é漢字🌊 שלום",
    "\u202eright to left\u2028\ufeff\ufffe",
    "x" * 10_000,
    "]; evil [label=x]; }",
    "-- // /* # */",
    "",
)


def of_names(*texts: str) -> Picture:
    """Two subgraphs and an unsupported layer, with these texts wherever there is one."""
    tooltip = tuple(texts)
    first = tuple(Box(f"layer{i}", "layer", (text,), tooltip, "A") for i, text in enumerate(texts))
    second = Box("last", "layer", tooltip, tooltip, "B")
    bad = Box("bad", "unsupported", tooltip, tooltip)
    return Picture(
        title=" ".join(texts)[:200],
        summary="2 subgraphs",
        devices=("A", "B"),
        groups=(Group(1, "A", "one", first), Group(2, "B", "two", (second,))),
        boxes=(bad,),
        lines=(
            Line("layer0", "last", tooltip, tooltip, is_cut=True),
            Line("layer0", "bad", (), tooltip, is_cut=False),
        ),
        unsupported=tuple(UnsupportedLayer(text, text, text) for text in texts),
    )


def seen(text: str) -> str:
    """A text as a reader sees it, white space aside."""
    return " ".join(text.split())


def test_boxes_stand_in_the_frames_of_their_subgraphs() -> None:
    dot = parse(to_dot(of_names("conv", "relu")))
    assert list(dot.clusters) == ["cluster_1", "cluster_2"]
    assert [list(each.nodes) for each in dot.clusters.values()] == [["layer0", "layer1"], ["last"]]
    assert dot.clusters["cluster_1"].attributes["label"] == "one"
    assert dot.clusters["cluster_1"].attributes["id"] == "subgraph1"
    assert list(dot.nodes) == ["bad"]


def test_colours_are_those_of_the_devices() -> None:
    dot = parse(to_dot(of_names("conv")))
    first, second = colours.of_device(0), colours.of_device(1)
    assert dot.clusters["cluster_1"].nodes["layer0"]["fillcolor"] == first.fill
    assert dot.clusters["cluster_1"].attributes["fillcolor"] == first.tint
    assert dot.clusters["cluster_2"].nodes["last"]["fillcolor"] == second.fill
    assert dot.clusters["cluster_2"].nodes["last"]["fontcolor"] == second.text
    assert dot.nodes["bad"]["fillcolor"] == colours.UNSUPPORTED.fill


def test_lines_on_the_cut_stand_out() -> None:
    dot = parse(to_dot(of_names("conv")))
    cut, other = dot.edge("layer0", "last"), dot.edge("layer0", "bad")
    assert (cut["class"], shown(cut["label"])) == ("cut", ["conv"])
    assert float(cut["penwidth"]) > 1
    assert "class" not in other
    assert "label" not in other


def test_the_heading_has_title_legend_and_unsupported_layers() -> None:
    heading = parse(to_dot(of_names("conv"))).attributes["label"]
    words = " ".join(ElementTree.fromstring(heading[1:-1]).itertext())
    for word in ("conv", "2 subgraphs", "A", "B", "unsupported", "conv (conv): conv", "bold lines"):
        assert word in words


def test_the_heading_of_a_picture_without_a_cut_and_unsupported_layers_is_short() -> None:
    plain = Picture("title", "nothing", (), (), (), (), ())
    heading = parse(to_dot(plain)).attributes["label"]
    assert list(ElementTree.fromstring(heading[1:-1]).itertext()) == ["title", "nothing"]


def test_the_heading_lists_the_first_of_many_unsupported_layers() -> None:
    heading = parse(to_dot(of_names(*map(str, range(100))))).attributes["label"]
    words = list(ElementTree.fromstring(heading[1:-1]).itertext())
    assert f"… and {100 - LISTED} more, which the command lists" in words
    assert len(words) < LISTED + 10


def test_a_very_large_layout_is_told_to_hurry() -> None:
    for count, hurried in ((1500, False), (1501, True)):
        boxes = tuple(Box(f"layer{i}", "layer", ("a",), (), "A") for i in range(count))
        group = Group(1, "A", "one", boxes)
        dot = parse(to_dot(Picture("t", "s", ("A",), (group,), (), (), ())))
        assert ("nslimit" in dot.attributes) is hurried


def test_hostile_names_stay_text() -> None:
    dot = parse(to_dot(of_names(*HOSTILE)))
    nodes = dot.clusters["cluster_1"].nodes
    assert len(nodes) == len(HOSTILE)
    assert len(dot.edges) == 2
    assert shown(nodes["layer0"]["label"]) == ['a "quoted" name']
    assert shown(nodes["layer1"]["label"]) == ["back\\slash \\N \\G \\n \\l \\"]
    assert shown(nodes["layer4"]["label"]) == ["&lt;b&gt; &amp; &#65; &"]
    assert shown(nodes["layer5"]["label"]) == ["line\\nend\\r\\ttab\\x00\\x1b[31m"]
    assert len(nodes["layer8"]["label"]) == 1000
    ElementTree.fromstring(dot.attributes["label"][1:-1])


@pytest.mark.long
@given(st.text(max_size=50).map(str.strip))
def test_a_label_shows_the_name_whatever_it_is(name: str) -> None:
    (attributes,) = (parse(f"digraph g {{ a [label={quote(name)}]; }}").nodes["a"],)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    assert shown(attributes["label"]) == ([text.strip()] if text else [])


@given(st.text(max_size=50))
def test_a_tooltip_has_no_backslash_that_graphviz_would_replace(name: str) -> None:
    tooltip = parse(f"digraph g {{ a [tooltip={quote_tooltip(name)}]; }}").nodes["a"]["tooltip"]
    assert "\\" not in tooltip.replace('\\"', "")


@given(st.text(max_size=50))
def test_html_text_is_well_formed(name: str) -> None:
    text = ElementTree.fromstring(f"<p>{html_text(name)}</p>").text or ""
    assert "\\" not in html_text(name)
    assert text.isprintable()


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_shows_hostile_names_as_they_are() -> None:
    run = subprocess.run(
        ["dot", "-Tsvg"], input=to_dot(of_names(*HOSTILE)).encode(), capture_output=True, check=True
    )
    assert run.stderr == b""
    svg = ElementTree.fromstring(run.stdout)
    texts = {seen(element.text or "") for element in svg.iter("{http://www.w3.org/2000/svg}text")}
    title = "{http://www.w3.org/1999/xlink}title"
    tooltips = {each.get(title, "") for each in svg.iter("{http://www.w3.org/2000/svg}a")}
    for name in HOSTILE[:5]:
        assert seen(name) in texts
        assert any(name.replace("\\", "\u29f5") in tooltip.split("\n") for tooltip in tooltips)
    assert "line\\nend\\r\\ttab\\x00\\x1b[31m" in texts
    assert "é漢字🌊 שלום" in texts
    everything = "\n".join((*texts, *tooltips))
    assert "headrace" not in everything, "an escape became the graph's name"
    assert "layer1" not in everything, "an escape became a node's name"
