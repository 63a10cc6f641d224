"""The channel of the synchronous client: it has no thread while calls wait for their replies."""
