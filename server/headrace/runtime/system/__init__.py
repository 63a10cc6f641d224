"""Helpers for what the operating system provides: files, memory, processors."""
