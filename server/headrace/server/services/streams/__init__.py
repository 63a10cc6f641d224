"""Streams of requests: what is in flight, what room it takes, and how results are written."""
