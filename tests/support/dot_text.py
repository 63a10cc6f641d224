"""A reader of DOT text that shares nothing with its writer: tokens, then nodes, edges, clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|-?[0-9.]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


@dataclass
class Dot:
    """A graph: attributes of its own, of nodes by name, of edges, of clusters and who is in them.

    Strings stand as in the text, without their quotes; `shown` takes a label apart.
    """

    attributes: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    edges: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    clusters: dict[str, Dot] = field(default_factory=dict)

    def edge(self, source: str, target: str) -> dict[str, str]:
        """The attributes of the one edge between two nodes."""
        (found,) = [each for a, b, each in self.edges if (a, b) == (source, target)]
        return found


def shown(label: str) -> list[str]:
    """The lines of text that a label shows."""
    lines, line, rest = [], "", label
    while rest:
        two = rest[:2]
        if two in ("\\n", "\\l"):
            lines.append(line)
            line, rest = "", rest[2:]
        elif rest[0] == "\\":
            assert two in ('\\"', "\\\\"), f"an escape that Graphviz replaces: {two}"
            line, rest = line + rest[1], rest[2:]
        elif entity := re.match(r"&(amp|lt|gt|quot|#\d+);", rest):
            assert entity[1] == "amp", "only the ampersand needs an entity"
            line, rest = line + "&", rest[entity.end() :]
        else:
            line, rest = line + rest[0], rest[1:]
    return [each.strip() for each in ([*lines, line] if line else lines)]


def parse(text: str) -> Dot:
    """The graph of a DOT text; anything but what we write is an error."""
    tokens = list(_tokens(text))
    assert tokens[0] == "digraph"
    assert tokens[2] == "{"
    dot, end = _body(tokens, 3)
    assert end == len(tokens), "text after the graph's end"
    return dot


def _tokens(text: str) -> Iterator[str]:
    """Words and punctuation as they are, strings with one leading quote, HTML with its bracket."""
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif text[at] == '"':
            match = _QUOTED.match(text, at)
            assert match, f"a string without an end: {text[at : at + 40]!r}"
            yield '"' + match[1]
            at = match.end()
        elif text[at] == "<":
            start, depth = at, 0
            while True:
                depth += {"<": 1, ">": -1}.get(text[at], 0)
                at += 1
                if depth == 0:
                    break
            yield text[start:at]
        elif text.startswith("->", at):
            yield "->"
            at += 2
        elif text[at] in "{}[]=;,":
            yield text[at]
            at += 1
        else:
            match = _WORD.match(text, at)
            assert match, f"no word: {text[at : at + 40]!r}"
            yield match[0]
            at = match.end()


def _body(tokens: list[str], at: int) -> tuple[Dot, int]:
    dot = Dot()
    while tokens[at] != "}":
        name, then = tokens[at], tokens[at + 1]
        if name == "subgraph":
            assert tokens[at + 2] == "{"
            dot.clusters[then], at = _body(tokens, at + 3)
        elif then == "=":
            dot.attributes[name] = tokens[at + 2].removeprefix('"')
            at += 4
        elif then == "->":
            attributes, end = _fields(tokens, at + 3)
            dot.edges.append((name, tokens[at + 2], attributes))
            at = end
        else:
            attributes, at = _fields(tokens, at + 1)
            if name == "graph":
                dot.attributes |= attributes
            elif name not in ("node", "edge"):
                assert name not in dot.nodes, f"{name} stands twice"
                dot.nodes[name] = attributes
    return dot, at + 1


def _fields(tokens: list[str], at: int) -> tuple[dict[str, str], int]:
    """The attributes in brackets, and where the statement ends."""
    assert tokens[at] == "["
    found: dict[str, str] = {}
    at += 1
    while tokens[at] != "]":
        assert tokens[at + 1] == "="
        found[tokens[at]] = tokens[at + 2].removeprefix('"')
        at += 3
        if tokens[at] == ",":
            at += 1
    assert tokens[at + 1] == ";"
    return found, at + 2
