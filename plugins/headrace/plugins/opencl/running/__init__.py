"""Runs requests: graphs node by node, and sessions with kernels of their own."""
