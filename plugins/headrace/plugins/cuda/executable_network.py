"""A network on a GPU."""

from __future__ import annotations

from headrace.plugins.cpu.executable_network import SessionNetwork


class GpuNetwork(SessionNetwork):
    """As one on processors, but never run by the thread that brings the request: its processor time
    says nothing of the run's length."""

    inline_safe = False
