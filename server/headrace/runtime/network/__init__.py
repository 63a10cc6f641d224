"""A network: its graph, names, bytes and types."""
