"""Computes graphs: evaluators, sessions with their own kernels, and trials of single layers."""
