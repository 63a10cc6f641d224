"""Shared memory through which a client and a server on one machine pass tensors."""
