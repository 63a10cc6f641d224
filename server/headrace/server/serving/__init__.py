"""Serves networks, whatever protocol asks for it."""
