"""The Open Inference Protocol over the same core: its gRPC service, and code shared with REST."""
