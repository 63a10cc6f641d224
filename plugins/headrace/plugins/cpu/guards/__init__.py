"""Layers that make a run fail if ONNX Runtime would not survive a value."""
