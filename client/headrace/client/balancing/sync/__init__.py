"""The synchronous client for several servers."""
