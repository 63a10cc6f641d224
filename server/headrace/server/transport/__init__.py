"""The transport of calls: gRPC's connections, slots for calls, and statuses."""
