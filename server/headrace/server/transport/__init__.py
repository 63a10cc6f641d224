"""The transport of calls: gRPC's connections, places for calls, and statuses."""
