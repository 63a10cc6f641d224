"""Compiled networks, kept on disk."""
