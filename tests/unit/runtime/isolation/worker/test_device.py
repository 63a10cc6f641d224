"""A device inside its worker."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from headrace.plugins.template.executable_network import TemplateNetwork
from headrace.runtime.execution.cancel import CancelToken
from headrace.runtime.isolation.worker.device import Call, WorkerDevice
from headrace.runtime.transform.options import NetworkOptions, options_to_json
from headrace.testing.case import parse


def test_a_network_that_cannot_be_described_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[TemplateNetwork] = []

    def metrics(network: TemplateNetwork) -> Mapping[str, Any]:
        raise ValueError("a plugin's bug")

    monkeypatch.setattr(TemplateNetwork, "metrics", metrics)
    monkeypatch.setattr(TemplateNetwork, "_close", lambda network: closed.append(network))
    model = parse("g (float[n] x) => (float[n] y) { y = Relu(x) }").SerializeToString()
    path = "tests.support.crashing_device:create_plugin"
    with closing(WorkerDevice("FRAGILE", path, {}, lambda _: None)) as device:
        arguments = {"config": {}, "options": options_to_json(NetworkOptions())}
        call = Call(arguments, [memoryview(model)], CancelToken())
        with pytest.raises(ValueError, match="bug"):
            device.load(call)
        assert len(closed) == 1
        assert device._networks == {}
