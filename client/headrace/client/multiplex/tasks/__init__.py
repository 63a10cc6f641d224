"""The shared stream of the asyncio client."""
