"""The asyncio client for several servers."""
