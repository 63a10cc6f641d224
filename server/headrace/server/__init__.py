"""The server: gRPC, HTTP, settings, repository and state around the runtime."""
