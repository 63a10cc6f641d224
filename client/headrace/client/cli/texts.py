"""Names, types and sizes in short, for people to read."""

from __future__ import annotations

import math

from headrace.client.info import Port

_SIZE = 24
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def describe(port: Port) -> str:
    """A short text for a port, for example ``x float32[N,3]``."""
    return f"{port.name} {type_text(port)}"


def type_text(port: Port) -> str:
    """The type and shape of a port, as ``float32[N,3]``. ``?`` at the end means optional. A size is
    ``?`` if it is not known, or is a formula, which may take pages."""
    shape = "[...]"
    if port.shape is not None:
        shape = f"[{','.join(map(_size_text, port.shape))}]"
    text = f"{port.dtype}{shape}"
    if port.kind == "sequence":
        text = f"sequence({text})"
    return f"{text}?" if port.optional else text


def _size_text(size: int | str | None) -> str:
    if isinstance(size, int) or (size and size.isidentifier() and len(size) <= _SIZE):
        return str(size)
    return "?"


def bytes_text(count: int | None) -> str:
    """A size as text, for example ``588 KiB``; ``? B`` for an unknown one."""
    if count is None:
        return "? B"
    if count < 1024:
        return f"{count} B"
    power = min(int(math.log2(count) // 10), len(_UNITS))
    return f"{count / 1024**power:.1f}".removesuffix(".0") + f" {_UNITS[power - 1]}"


def counted(count: int, noun: str) -> str:
    """A number with its noun, for example ``1 layer`` and ``2 layers``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def visible(text: str, limit: int) -> str:
    """`text` in one line of at most `limit` characters.

    Characters that cannot be printed, including line ends, become ``\\n`` or ``\\x07`` as Python
    writes them. If the text is too long, an ellipsis replaces a part before its end. The end
    stays, because names differ most there.
    """
    if not text.isprintable():
        text = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode()
            for character in text
        )
    if len(text) <= limit:
        return text
    head = limit // 3
    return f"{text[:head]}…{text[head + 1 - limit :]}"
