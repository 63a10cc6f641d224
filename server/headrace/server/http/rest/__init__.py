"""REST as the Open Inference Protocol defines it."""
