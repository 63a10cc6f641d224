"""A request on its way through the parts of a network."""
