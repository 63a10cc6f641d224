"""The channel of the asyncio client: protocols of event loops."""
