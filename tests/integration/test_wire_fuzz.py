"""A sample of what `make fuzz-wire` and `make fuzz-rest` do for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.harness import Server, assert_settled
from tools.fuzz import rest
from tools.fuzz.frames import fuzz_frames
from tools.fuzz.wire import DEVICES, fuzz, resources


def test_every_mutated_message_of_every_method_ends_with_a_status_that_it_deserves() -> None:
    with Server(*DEVICES) as server:
        fuzz(server, 200, seed=1)  # what is made once, is made now
        before = resources(server)
        state = fuzz(server, 1000, seed=2)
        assert not state.faults, "\n".join(state.faults)
        assert state.probes > 0
        assert_settled(server)
        after = resources(server)
        assert after.megabytes < before.megabytes + 64
        assert not after.leaks_since(before)
        assert server.stop() == 0, server.log()
        assert "Traceback" not in server.log(), server.log()


@pytest.mark.native_front_end("grpcio's server ends after a path that is not UTF-8")
def test_every_mutated_conversation_of_http_2_ends() -> None:
    with Server(*DEVICES) as server:
        fuzz_frames(server, 100, seed=1)  # what is made once, is made now
        before = resources(server)
        state = fuzz_frames(server, 300, seed=2)
        assert not state.faults, "\n".join(state.faults)
        assert_settled(server)
        after = resources(server)
        assert after.megabytes < before.megabytes + 64
        assert not after.leaks_since(before)
        assert server.stop() == 0, server.log()
        assert "Traceback" not in server.log(), server.log()


def test_every_mutated_request_of_rest_ends_with_a_status_that_it_deserves(tmp_path: Path) -> None:
    with Server(*rest.repository(tmp_path)) as server:
        rest.fuzz(server, 200, seed=1)  # what is made once, is made now
        before = resources(server)
        state = rest.fuzz(server, 1000, seed=2)
        assert not state.faults, "\n".join(state.faults)
        assert state.probes > 0
        assert_settled(server)
        after = resources(server)
        assert after.megabytes < before.megabytes + 64
        assert not after.leaks_since(before)
        assert server.stop() == 0, server.log()
        assert "Traceback" not in server.log(), server.log()
