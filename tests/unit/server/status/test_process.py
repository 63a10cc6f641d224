"""The numbers of the process."""

from __future__ import annotations

import os

from headrace.server.status.status import process_facts


def test_the_process_is_this_one() -> None:
    facts = process_facts()
    assert facts["pid"] == os.getpid()
    assert facts["resident_memory_bytes"] > 1 << 20
    assert facts["cpu_seconds_total"] > 0
    assert 0 < facts["open_fds"] < facts["max_fds"]
    assert facts["processors"] >= 1
    assert facts["threads"] >= 1
    assert facts["memory_limit_bytes"] > facts["resident_memory_bytes"]
