"""Reads the descriptions of pipelines that people write."""

from __future__ import annotations

from typing import Final

from headrace.runtime.errors import InvalidArgument
from headrace.runtime.pipelines.description import FILE, PipelineDescription, read_pipeline
from headrace.server.toml import parse_toml

MAX_BYTES: Final = 1 << 20
"""The most bytes of one description."""


def parse_pipeline(text: bytes) -> PipelineDescription:
    """The pipeline that the text of a ``pipeline.toml`` describes.

    Raises:
        InvalidArgument, NotFound: the text is not TOML, or describes no pipeline.
    """
    if len(text) > MAX_BYTES:
        raise InvalidArgument(f"has more than {MAX_BYTES} bytes", field=FILE)
    try:
        facts = parse_toml(text)
    except ValueError as error:
        raise InvalidArgument(str(error), field=FILE) from error
    return read_pipeline(facts)
