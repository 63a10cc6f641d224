"""What the manual's page of errors quotes is what a server or the client says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from headrace.client import Client, Network, errors
from headrace.testing.case import parse
from tests.integration.harness import Server
from tests.support.manual import text_of

MODEL = parse("quoted (float[1,16] x) => (float[1,16] y) { y = Softmax(x) }")
TEXTS = parse("texts (string[n] x) => (string[n] y) { y = Identity(x) }")
X = np.ones((1, 16), np.float32)
QUOTED = re.findall(
    r"^\| `([^|]*…[^|]*|[a-z][^|]*)` \|", text_of("docs/use/errors.md"), re.MULTILINE
)

Provoke = Callable[[Client, Network], object]


def load(client: Client, model: onnx.ModelProto | bytes, **options: Any) -> object:
    return client.load_network(model, **{"device": "CPU", "name": "never", **options})


PROVOKED: tuple[Provoke, ...] = (
    lambda client, _: load(client, MODEL, device="GPU"),
    lambda client, _: load(client, MODEL, config={"NUM_STREAM": 1}),
    lambda client, _: load(client, MODEL, config={"NUM_STREAMS": "many"}),
    lambda client, _: load(client, b"version https://git-lfs"),
    lambda client, _: load(client, TEXTS, device="TEMPLATE", name="a b"),
    lambda client, _: load(client, unsupported(), device="CPU"),
    lambda client, network: load(client, MODEL, name=network.name),
    lambda client, _: client.load_network(repository="nowhere"),
    lambda client, _: client.network("quotes"),
    lambda _, network: network.infer({"z": X}),
    lambda _, network: network.infer({}),
    lambda _, network: network.infer({"x": X.astype(np.float64)}),
    lambda _, network: network.infer({"x": X[0]}),
    lambda _, network: network.infer({"x": X}, outputs=["z"]),
)


def unsupported() -> onnx.ModelProto:
    """Has a layer of an operator that no device knows."""
    model = parse("odd (float[n] x) => (float[n] y) { y = Softmax(x) }")
    model.graph.node[0].op_type = "Hardermax"
    return model


@pytest.fixture(scope="module")
def said(server: Server) -> list[str]:
    """The messages of all that is provoked, in order."""
    found = []
    with Client(server.address) as client:
        network = client.load_network(MODEL, device="CPU", name="quoted")
        for provoke in PROVOKED:
            with pytest.raises(errors.Error) as raised:
                provoke(client, network)
            found.append(str(raised.value))
        network.unload()
    return found


def pattern(quoted: str) -> str:
    return ".*".join(map(re.escape, quoted.split("…")))


@pytest.mark.parametrize("quoted", QUOTED)
def test_somebody_says_what_the_page_quotes(quoted: str, said: list[str]) -> None:
    assert [each for each in said if re.fullmatch(pattern(quoted), each, re.DOTALL)], said


def test_the_page_quotes_all_that_is_provoked(said: list[str]) -> None:
    known = [pattern(quoted) for quoted in QUOTED]
    assert not [
        each for each in said if not any(re.fullmatch(one, each, re.DOTALL) for one in known)
    ]
