"""One client for several servers: which server gets a call, and what happens if it fails there."""

from headrace.client.balancing.options import Balancing

__all__ = ["Balancing"]
