"""Pipelines: several networks behind one name, described by steps and the tensors between them."""
