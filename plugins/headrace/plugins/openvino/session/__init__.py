"""Compiling and running: the core, infer requests, tensors, profiles."""
