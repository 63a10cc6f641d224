"""gRPC as an ASGI application, for a server of HTTP/2 that can send trailers."""
