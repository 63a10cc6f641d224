"""Compiled networks and weights, kept on disk."""
