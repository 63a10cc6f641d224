"""Compiles networks for one tuple of input shapes each, and runs them."""
