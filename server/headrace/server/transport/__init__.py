"""How calls come in: gRPC's connections, places for calls, statuses."""
