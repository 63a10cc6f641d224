"""What computes each operator: tinygrad's functions, and ours where those are wrong."""
