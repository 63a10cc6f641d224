"""Requests of one client that share a stream: what waits together travels together."""
