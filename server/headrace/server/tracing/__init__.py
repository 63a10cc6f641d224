"""Traces: which calls are traced, whom they belong to, and how their spans are exported."""
