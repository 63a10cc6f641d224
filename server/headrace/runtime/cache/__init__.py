"""Compiled networks, weights, and what is known of models, kept on disk."""
