"""Computing a graph: evaluators, sessions with kernels of their own, trials of single layers."""
