"""States that the server keeps between the requests of a sequence."""
