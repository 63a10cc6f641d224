"""A picture in Graphviz' language DOT (https://graphviz.org/doc/info/lang.html).

Graphviz interprets none of a network's text. Names are never identifiers. Quotes, backslashes,
entities, tags and characters that cannot be printed are escaped in strings.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.client.cli.drawing import colours
from headrace.client.cli.drawing.colours import Paint
from headrace.client.cli.drawing.picture import Box, Group, Line, Picture
from headrace.client.cli.texts import visible

LISTED: Final = 12
"""At most this many unsupported layers are listed in the heading with their reasons."""
_QUICK_BOXES: Final = 1500
"""With this many boxes or more, Graphviz makes a good layout instead of the best one, because its
effort grows with the square of the number of boxes."""

_LIMIT = 1000
_ROW = 200
_FONT = "Helvetica,Arial,sans-serif"
_GREY = "#595959"
_SHAPES = {
    "layer": ("box", "rounded,filled"),
    "subgraph": ("box", "rounded,filled,bold"),
    "unsupported": ("octagon", "filled,bold"),
    "input": ("ellipse", "filled"),
    "output": ("ellipse", "filled"),
}


def to_dot(picture: Picture) -> str:
    """The DOT text of a picture, for `dot`."""
    return "\n".join(_lines(picture)) + "\n"


def quote(*lines: str, beside: bool = False) -> str:
    """A label of these lines. It is centred, or stands a little apart `beside` a line."""
    escaped = [_no_entities(visible(line, _LIMIT)).replace("\\", "\\\\") for line in lines]
    return _in_quotes(
        "".join(f"  {line}  \\l" for line in escaped) if beside else "\\n".join(escaped)
    )


def quote_tooltip(*lines: str) -> str:
    """A tooltip of these lines."""
    escaped = (_no_backslash(_no_entities(visible(line, _LIMIT))) for line in lines)
    return _in_quotes("\\n".join(escaped))


def html_text(text: str, limit: int = _ROW) -> str:
    """Text within an HTML-like label. It is never empty, because Graphviz refuses empty text."""
    return _no_backslash(html.escape(visible(text, limit))) or " "


def _no_backslash(text: str) -> str:
    """The text with U+29F5, which looks like a backslash, for each backslash. In tooltips and
    HTML-like labels Graphviz replaces escapes such as ``\\G``. How often it does that depends on
    its version."""
    return text.replace("\\", "\u29f5")


def _no_entities(text: str) -> str:
    return text.replace("&", "&amp;")


def _in_quotes(escaped: str) -> str:
    return '"' + escaped.replace('"', '\\"') + '"'


def _lines(picture: Picture) -> Iterator[str]:
    paints = {device: colours.of_device(at) for at, device in enumerate(picture.devices)}
    yield "digraph headrace {"
    yield f"  graph [{_fields(charset='UTF-8', rankdir='TB', labelloc='t', labeljust='l')}];"
    yield f"  graph [{_fields(fontname=_FONT, nodesep='0.3', ranksep='0.45')}];"
    if sum(len(group.boxes) for group in picture.groups) > _QUICK_BOXES:
        yield '  graph [nslimit="1", nslimit1="1"];'
    yield f"  node [{_fields(fontname=_FONT, fontsize='11', margin='0.12,0.05')}];"
    yield f"  edge [{_fields(fontname=_FONT, fontsize='10', color=_GREY, arrowsize='0.7')}];"
    yield f"  label=<{''.join(_heading(picture, paints))}>;"
    for group in picture.groups:
        yield from _group(group, paints)
    for box in picture.boxes:
        yield f"  {_box(box, paints)}"
    for line in picture.lines:
        yield f"  {_line(line)}"
    yield "}"


def _group(group: Group, paints: dict[str, Paint]) -> Iterator[str]:
    paint = paints.get(group.device, colours.UNKNOWN)
    look = {"style": "rounded,filled", "color": paint.fill, "fillcolor": paint.tint}
    name = f"subgraph{group.number}"
    yield f"  subgraph cluster_{group.number} {{"
    yield f"    graph [{_fields(id=name, penwidth='2', fontsize='13', **look)}];"
    yield f"    graph [{_fields(**{'class': 'subgraph'})}, tooltip={quote_tooltip(group.heading)}];"
    yield f"    label={quote(group.heading)};"
    for box in group.boxes:
        yield f"    {_box(box, paints)}"
    yield "  }"


def _box(box: Box, paints: dict[str, Paint]) -> str:
    paint = paints.get(box.device, colours.UNKNOWN)
    if box.kind == "unsupported":
        paint = colours.UNSUPPORTED
    shape, style = _SHAPES[box.kind]
    fields = {"id": box.key, "class": box.kind, "shape": shape, "style": style}
    fields |= {"fillcolor": paint.fill, "fontcolor": paint.text}
    texts = f"label={quote(*box.lines)}, tooltip={quote_tooltip(*box.tooltip)}"
    return f"{box.key} [{texts}, {_fields(**fields)}];"


def _line(line: Line) -> str:
    fields = {"class": "cut", "penwidth": "2.5", "color": "#000000"} if line.is_cut else {}
    tooltip = quote_tooltip(*line.tooltip)
    texts = f"tooltip={tooltip}"
    if line.lines:
        texts += f", label={quote(*line.lines, beside=True)}, labeltooltip={tooltip}"
    separator = ", " if fields else ""
    return f"{line.source} -> {line.target} [{texts}{separator}{_fields(**fields)}];"


def _heading(picture: Picture, paints: dict[str, Paint]) -> Iterator[str]:
    """An HTML-like table: title, summary, legend, unsupported layers."""
    yield '<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="2">'
    yield _row(f'<FONT POINT-SIZE="16"><B>{html_text(picture.title)}</B></FONT>')
    yield _row(html_text(picture.summary))
    legend = {visible(device, 40): paint for device, paint in paints.items()}
    if picture.unsupported:
        legend["unsupported"] = colours.UNSUPPORTED
    if any(line.is_cut for line in picture.lines):
        legend[f"bold lines: tensors from {picture.part} to {picture.part}"] = colours.UNKNOWN
    if legend:
        yield _row(_legend(legend))
    for text in _listed(picture):
        yield _row(f'<FONT COLOR="{colours.UNSUPPORTED.fill}">{html_text(text)}</FONT>')
    yield "</TABLE>"


def _listed(picture: Picture) -> Sequence[str]:
    layers = picture.unsupported
    texts = [
        f"{visible(layer.layer, 50)} ({visible(layer.op_type, 30)}): {layer.reason}"
        for layer in layers[:LISTED]
    ]
    rest = len(layers) - LISTED
    return [*texts, f"… and {rest:,} more, which the command lists"] if rest > 0 else texts


def _row(content: str) -> str:
    return f'<TR><TD ALIGN="LEFT">{content}</TD></TR>'


def _legend(paints: dict[str, Paint]) -> str:
    """Texts on their colours, side by side. The table has a width of its own, because otherwise a
    long reason below makes it too wide. Nine points a character are more than it needs."""
    cells, width = [], 0
    for text, paint in paints.items():
        border = "0" if paint is colours.UNKNOWN else "1"
        width += 24 + 9 * sum(1 if character.isascii() else 2 for character in text)
        font = f'<FONT COLOR="{paint.text}">{html_text(text)}</FONT>'
        cells.append(f'<TD BORDER="{border}" BGCOLOR="{paint.fill}">{font}</TD>')
    size = f'FIXEDSIZE="TRUE" WIDTH="{width}" HEIGHT="32" ALIGN="LEFT"'
    return f'<TABLE BORDER="0" CELLSPACING="4" {size}><TR>{"".join(cells)}</TR></TABLE>'


def _fields(**fields: str) -> str:
    """Attributes with values from this module, which need no escapes."""
    return ", ".join(f'{name}="{value}"' for name, value in fields.items())
