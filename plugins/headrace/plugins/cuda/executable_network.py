"""A network on a GPU."""

from __future__ import annotations

from headrace.plugins.cpu.executable_network import SessionNetwork


class GpuNetwork(SessionNetwork):
    """Like a network on processors, but the thread that brings a request never runs it, because the
    thread's processor time does not tell how long the run takes."""

    inline_safe = False
