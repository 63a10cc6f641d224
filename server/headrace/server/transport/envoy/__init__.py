"""Envoy as the front end: it speaks HTTP/2 and TLS in C++, and calls Python in its own process."""
