"""Runs requests in sessions, and measures layers."""
