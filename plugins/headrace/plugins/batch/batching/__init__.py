"""Requests on their way through a batch: when they run together, and how rows are joined."""
