"""Finds out from a network's graph whether the network computes each row by itself."""
