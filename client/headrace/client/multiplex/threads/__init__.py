"""The shared stream of the synchronous client."""
