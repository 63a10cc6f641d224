"""Runs requests in sessions on a GPU."""
