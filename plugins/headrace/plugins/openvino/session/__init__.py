"""Compiles and runs networks: the core, infer requests, tensors and profiles."""
