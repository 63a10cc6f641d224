"""Several processes on gRPC's port: front ends speak gRPC, and the engine does the work."""
