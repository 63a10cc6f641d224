"""The Open Inference Protocol over the same core: its gRPC service, and what REST shares."""
