"""Transformations of a network, and the query that follows from them."""
